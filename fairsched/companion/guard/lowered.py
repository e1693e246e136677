# SPDX-License-Identifier: Apache-2.0
"""Lowers settings of tenants for a while and gives them back, whatever ends the process that lowered them.

Problem: a quota that was lowered is an override, which outlives the companion, the daemon and a reboot. Nobody may
stay slow because a process died.

Approach: a change is in the audit log and on record in ``lowered.json`` before it is made. Whoever comes next takes
back what is on record before anything else. A change is only taken back while the override is still the one that was
made: what a person has set meanwhile stays, and is not lowered again while the matter lasts. Giving back is done even
where it cannot be written down.

Terms: a *place* is a tenant and a key. *Ceded* is a place that a person has changed while it was lowered.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fairsched.companion.guard.records import Records
from fairsched.companion.locked import LockedFile
from fairsched.companion.values import Daemon, PutBack, Settings, put_back
from fairsched.errors import ControlError, FairschedError

VERSION = 1
Place = tuple[str, str]
"""Tenant, key."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """A setting that is lower than it was."""

    tenant: str
    key: str
    set: int | float
    before: int | float | None
    """None = it was not set."""
    was_override: bool
    why: str

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
    """What of ours is in force. The caller has locked ``file``, and calls from one thread at a time."""

    def __init__(self, daemon: Daemon, file: LockedFile, records: Records) -> None:
        self._daemon, self._file, self._records = daemon, file, records
        self._changes: dict[Place, Change] = {}
        self._ceded: set[Place] = set()
        self._unsure: set[Place] = set()
        """The daemon was asked, and did not say that it was done."""
        self._written: dict[Place, int | float] = {}
        """Asked for and in the audit log, but not done: it is tried each round, and written down once."""

    @property
    def changes(self) -> Mapping[Place, Change]:
        """In force, or perhaps: a change is on record before it is made, and until it is known to be over."""
        return dict(self._changes)

    @property
    def done(self) -> tuple[Place, ...]:
        """Of these the ones that the daemon has confirmed."""
        return tuple(place for place in tuple(self._changes) if place not in self._unsure)

    def load(self) -> None:
        """Take over what another process has left. A record that cannot be understood is set aside, and said."""
        path = self._file.path
        try:
            document = _DOCUMENT.validate_json(path.read_bytes())
            if document.version != VERSION:
                raise ValueError(f"it is of version {document.version}, not {VERSION}")
        except FileNotFoundError:
            return
        except OSError as error:
            self._records.trouble("record", f"{path}: {error.strerror}: what is lowered is not known")
            return
        except (ValidationError, ValueError):
            aside = path.with_suffix(".json.damaged")
            with contextlib.suppress(OSError):
                os.replace(path, aside)
            self._records.trouble(
                "record", f"{aside} cannot be understood: see `fairsched tenant list` for what is lowered"
            )
            return
        self._changes = {change.place: change for change in document.changes}

    def lower(
        self, place: Place, wanted: int | float, settings: Settings, why: str, entry: Mapping[str, Any]
    ) -> Change:
        """Set it to ``wanted``. ``entry``: more for the audit log. Raises NotLowered with the reason."""
        tenant, key = place
        found = settings.get(tenant, {}).get(key)
        if place in self._ceded:
            raise NotLowered(f"{key} of {tenant} was changed by hand meanwhile, and is left alone")
        if found is None:
            raise NotLowered(f"the configuration has no tenant {tenant} of that very name")
        before = found.value if isinstance(found.value, (int, float)) else None
        if before is not None and before <= wanted:
            raise NotLowered(f"{key} of {tenant} is {before:g} already")
        change = Change(tenant, key, wanted, before, found.is_override, why)
        if self._written.get(place) != wanted:
            refusal = self._records.write(
                "lower", {**entry, "tenant": tenant, "key": key, "set": wanted, "before": before, "text": why}
            )
            if refusal is not None:
                raise NotLowered(refusal)
            self._written[place] = wanted
        self._changes[place] = change
        try:
            self._save()
        except OSError as error:
            del self._changes[place]
            raise NotLowered(
                f"{self._file.path} cannot be written ({error.strerror or error}), so nothing is done",
                remedy="make room on its disk",
            ) from None
        try:
            self._daemon.request("tenant_set", tenant=tenant, values={key: wanted})
        except ControlError as error:
            self._unsure.add(place)  # an answer that did not come says nothing of the deed
            raise NotLowered(
                f"the daemon did not set {key} of {tenant}: {error}", remedy=error.remedy
            ) from None
        self._written.pop(place, None)
        return change

    def cede(self, settings: Settings) -> None:
        """Give up what a person has changed meanwhile."""
        for place, change in self.changes.items():
            found = settings.get(change.tenant, {}).get(change.key)
            if found is None:
                continue  # the tenant is gone, by a reload
            if found.is_override and found.value == change.set:
                self._unsure.discard(place)
                continue
            is_person = place not in self._unsure
            self._forget(place)
            if is_person:
                self._ceded.add(place)
                logger.warning("guard=ceded tenant=%s key=%s", *place)
                self._records.write("ceded", {"tenant": change.tenant, "key": change.key, "now": found.value})

    def let_go(self, why: str, keep: Collection[Place] = ()) -> None:
        """Give back all but these. What cannot be given back now stays on record; call again. ``why``: a sentence.

        A place that is not kept is over: what a person has set there counts as any other setting from here on.
        """
        self._ceded &= set(keep)
        self._written = {place: wanted for place, wanted in self._written.items() if place in keep}
        for place in [one for one in self._changes if one not in keep]:
            self._give_back(place, why)

    def _give_back(self, place: Place, why: str) -> None:
        change, matter = self._changes[place], f"give back {place}"
        try:
            done, value = put_back(self._daemon, asdict(change))
        except ControlError as error:
            self._records.trouble(matter, f"{change.key} of {change.tenant} is not given back yet: {error}")
            return
        self._records.trouble(matter, None)
        self._forget(place)
        logger.warning("guard=given_back tenant=%s key=%s outcome=%s why=%r", *place, done.value, why)
        did = "gave back" if done is PutBack.DONE else "left alone"
        self._records.write(did, {"tenant": change.tenant, "key": change.key, "now": value, "text": why})

    def _forget(self, place: Place) -> None:
        del self._changes[place]
        self._unsure.discard(place)
        # A record that stays for want of room names a value that is not set any more: it is left alone later.
        with contextlib.suppress(OSError):
            self._save()

    def _save(self) -> None:
        if not self._changes:
            self._file.path.unlink(missing_ok=True)
            return
        document = _Document(VERSION, tuple(self._changes.values()))
        self._file.write(_DOCUMENT.dump_json(document, indent=1) + b"\n")
