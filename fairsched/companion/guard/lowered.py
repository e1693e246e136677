# SPDX-License-Identifier: Apache-2.0
"""Lowers settings of tenants for a while and gives them back, whatever ends the process that lowered them.

Problem: a quota that was lowered is an override, which outlives the companion, the daemon and a reboot. Nobody may
stay slow because a process died.

Approach: each change is on the disk before it is made, in ``lowered.json``. Whoever comes next takes back what is in
it before anything else. A change is only taken back while the override is still the one that was made: what a person
has set meanwhile stays, and is not lowered again until the caller says that the matter is over.

Terms: a *place* is a tenant and a key. *Ceded* is a place that a person has changed while it was lowered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fairsched.companion.locked import LockedFile
from fairsched.companion.values import Daemon, PutBack, Settings, put_back
from fairsched.errors import ControlError, FairschedError

FILE = "lowered.json"
VERSION = 1
Place = tuple[str, str]
"""Tenant, key."""


@dataclass(frozen=True)
class Change:
    """A setting that is lower than it was."""

    tenant: str
    key: str
    set: float
    before: float | None
    """None = it was not set."""
    was_override: bool
    why: str
    at_s: float
    """Unix time."""

    @property
    def place(self) -> Place:
        return self.tenant, self.key


@dataclass(frozen=True)
class _Document:
    version: int
    changes: tuple[Change, ...] = ()


_DOCUMENT = TypeAdapter(_Document)


class NotLowered(FairschedError):
    """Nothing was changed."""


class Lowered:
    """What of ours is in force. ``file`` is locked by the caller, who may call from one thread at a time."""

    def __init__(self, daemon: Daemon, file: LockedFile) -> None:
        self._daemon, self._file = daemon, file
        self._changes: dict[Place, Change] = {}
        self._ceded: set[Place] = set()

    @property
    def changes(self) -> Mapping[Place, Change]:
        """In force, or perhaps: a change is on record before it is made, and until it is known to be over."""
        return dict(self._changes)

    def load(self) -> str | None:
        """Take over what another process has left. A text says what is wrong with the record, which is set aside."""
        try:
            document = _DOCUMENT.validate_json(self._file.path.read_bytes())
            if document.version != VERSION:
                raise ValueError(f"it is of version {document.version}, not {VERSION}")
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{self._file.path}: {error.strerror}"
        except (ValidationError, ValueError) as error:
            aside = self._file.path.with_suffix(".json.damaged")
            with contextlib.suppress(OSError):
                os.replace(self._file.path, aside)
            return f"{aside}: it cannot be understood: {str(error).splitlines()[0]}"
        self._changes = {change.place: change for change in document.changes}
        return None

    def check(self, tenant: str, key: str, wanted: float, settings: Settings) -> float | None:
        """What is set now, if it can be lowered to ``wanted``. Raises NotLowered."""
        found = settings.get(tenant, {}).get(key)
        if (tenant, key) in self._ceded:
            raise NotLowered(f"{key} of {tenant} was changed by hand meanwhile, and is left alone")
        if found is None:
            raise NotLowered(f"{tenant} has no setting of its own: the configuration does not name it")
        before = float(found.value) if isinstance(found.value, (int, float)) else None
        if before is not None and before <= wanted:
            raise NotLowered(f"{key} of {tenant} is {before:g} already")
        return before

    def lower(
        self, tenant: str, key: str, wanted: float, settings: Settings, why: str, now_s: float
    ) -> Change:
        """Set it to ``wanted``. Raises NotLowered, also where it cannot be written down or the daemon refuses."""
        before = self.check(tenant, key, wanted, settings)
        value = int(wanted) if float(wanted).is_integer() and wanted > 1 else wanted
        change = Change(tenant, key, value, before, settings[tenant][key].is_override, why, now_s)
        self._changes[change.place] = change
        try:
            self._save()
        except OSError as error:
            del self._changes[change.place]
            text = error.strerror or str(error)
            raise NotLowered(
                f"{self._file.path} cannot be written ({text}), so nothing is done", remedy="make room on its disk"
            ) from None
        try:
            self._daemon.request("tenant_set", tenant=tenant, values={key: value})
        except ControlError as error:
            # It may have been done all the same: it is taken back like any other.
            with contextlib.suppress(ControlError):
                self._give_back(change)
            raise NotLowered(f"the daemon refused to set {key} of {tenant}: {error}", remedy=error.remedy) from None
        return change

    def is_ours(self, place: Place, settings: Settings) -> bool:
        """Whether it still is as it was set here; False: a person has changed it, and it is given up."""
        change = self._changes[place]
        found = settings.get(change.tenant, {}).get(change.key)
        if found is not None and found.is_override and found.value == change.set:
            return True
        self._ceded.add(place)
        self._forget(change)
        return False

    def give_back(self, place: Place) -> tuple[PutBack, Change, Any]:
        """Take a change back: what came of it, the change, and what is set now. Raises ControlError; try again."""
        change = self._changes[place]
        done, value = self._give_back(change)
        return done, change, value

    def end(self, places: Iterable[Place]) -> None:
        """The matter is over for all places but these: what a person set there counts as any other setting."""
        self._ceded &= set(places)

    def _give_back(self, change: Change) -> tuple[PutBack, Any]:
        done, value = put_back(self._daemon, asdict(change))
        self._forget(change)
        return done, value

    def _forget(self, change: Change) -> None:
        self._changes.pop(change.place, None)
        # A record that stays for want of room names a value that is not set any more: it is left alone later.
        with contextlib.suppress(OSError):
            self._save()

    def _save(self) -> None:
        if not self._changes:
            self._file.path.unlink(missing_ok=True)
            return
        raw = _DOCUMENT.dump_json(_Document(VERSION, tuple(self._changes.values())), indent=1)
        self._file.write(raw + b"\n")


def is_left(directory: Path) -> bool:
    """Whether something is on record as lowered."""
    return (directory / FILE).exists()
