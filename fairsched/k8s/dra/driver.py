# SPDX-License-Identifier: Apache-2.0
"""Prepares claims and undoes it: a record and a CDI spec for each, again and again with the same outcome.

The record (``DIRECTORY/UID.json``) is what was decided; the spec follows from it. Whatever is killed in between: a
record without a spec gets one at the next start or the next asking, a spec without a record is removed at the start.
A claim that is prepared is answered from its record as long as it has the same allocation, and while the API server is
away; that a GPU has gone since changes nothing about it. Undoing removes the spec first, and the record last.

A damaged record costs its claim's values, and nothing that runs.

May be called from several threads. Errors: ClaimError; Refused and Unreachable of the API server; OSError.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairsched.base.files import replace_file
from fairsched.k8s.client import Refused, Unreachable
from fairsched.k8s.dra.cdi import Specs
from fairsched.k8s.dra.claims import (
    UID,
    Check,
    ClaimError,
    Given,
    Prepared,
    from_plain,
    gpus_of,
    mark_of,
    read_claim,
)
from fairsched.k8s.dra.devices import Offer

GetClaim = Callable[[str, str], Mapping[str, Any]]
"""(namespace, name) -> the ResourceClaim. Raises Refused or Unreachable."""

logger = logging.getLogger(__name__)


class Driver:
    """See the module. ``changed`` is called after a claim was prepared or undone."""

    def __init__(
        self,
        node: str,
        directory: Path,
        specs: Specs,
        get_claim: GetClaim,
        check: Check,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``directory``: of the records. Raises OSError where it cannot be made."""
        self._node, self._directory, self._specs = node, directory, specs
        self._get_claim, self._check, self._changed = get_claim, check, changed
        self._lock = threading.Lock()
        self._offers: Mapping[str, Offer] = {}
        self._records: dict[str, tuple[Prepared, list[list[str]]]] = {}
        """By uid; with the CDI names of each device given."""
        self._unready: set[str] = set()
        """Claims of which a spec that is missing could not be written, and that was said."""
        directory.mkdir(parents=True, exist_ok=True)

    def set_offers(self, offers: Mapping[str, Offer]) -> None:
        """What claims may have from now on."""
        self._offers = offers

    def prepared(self) -> list[Prepared]:
        """All claims that are prepared now."""
        with self._lock:
            return [one for one, _ in self._records.values()]

    # ---- the kubelet's ----

    def prepare(self, namespace: str, name: str, uid: str) -> list[tuple[Given, list[str]]]:
        """What the claim was given, each with its CDI names."""
        _check_uid(uid)
        with self._lock:
            recorded = self._records.get(uid)
        try:
            claim = self._get_claim(namespace, name)
        except Unreachable:
            if recorded is None:
                raise
            claim = None
        if recorded is not None and (claim is None or mark_of(claim) == recorded[0].mark):
            return self._prepared_again(uid)
        assert claim is not None
        prepared = read_claim(claim, uid, self._node, self._offers, self._check)
        with self._lock:
            names = self._write(prepared)
        logger.info(
            "claim=prepared namespace=%s name=%s uid=%s gpus=%s", namespace, name, uid, _told(prepared)
        )
        self._changed()
        return list(zip(prepared.given, names, strict=True))

    def _prepared_again(self, uid: str) -> list[tuple[Given, list[str]]]:
        with self._lock:
            if uid not in self._records:
                raise ClaimError("it was undone meanwhile")
            prepared, names = self._records[uid]
            if not self._specs.path(uid).exists():  # a reboot empties /run
                names = self._write_spec(prepared)
            return list(zip(prepared.given, names, strict=True))

    def unprepare(self, uid: str) -> None:
        """Undo it; of a claim that is not prepared there is nothing to undo."""
        _check_uid(uid)
        with self._lock:
            self._forget(uid)
        logger.info("claim=undone uid=%s", uid)
        self._changed()

    # ---- the start ----

    def load(self) -> None:
        """Read the records, and remove what has none. Raises OSError."""
        with self._lock:
            self._records.clear()
            for path in sorted(self._directory.iterdir()):
                if path.suffix == ".json":
                    self._load_one(path)
                elif path.name.startswith("."):  # a write that was killed
                    path.unlink(missing_ok=True)
            self._specs.sweep_scratch()
            for uid in list(self._specs.uids()):
                if uid not in self._records and not self._damaged(uid).exists():
                    logger.warning("claim=stale uid=%s removed='its CDI spec, which has no record'", uid)
                    self._specs.remove(uid)
        self._changed()

    def sweep(self) -> None:
        """Undo claims that the API server has not got any more; the kubelet may have forgotten them as well.

        Claims are kept from deletion while a pod has them. Raises Unreachable.
        """
        for one in self.prepared():
            try:
                found = self._get_claim(one.namespace, one.name)
                is_gone = (found.get("metadata") or {}).get("uid") != one.uid
            except Refused as error:
                if not error.is_absent:
                    raise
                is_gone = True
            if is_gone:
                logger.warning("claim=gone namespace=%s name=%s uid=%s", one.namespace, one.name, one.uid)
                self.unprepare(one.uid)

    def mend(self) -> None:
        """Write the specs that are missing, as after a reboot, as far as their GPUs are there. Raises OSError."""
        with self._lock:
            for uid, (prepared, _) in list(self._records.items()):
                if not self._specs.path(uid).exists():
                    try:
                        self._write_spec(prepared)
                        self._unready.discard(uid)
                    except ClaimError as error:
                        if uid not in self._unready:
                            logger.warning("claim=unready uid=%s error=%r", uid, str(error))
                        self._unready.add(uid)

    # ---- files ----

    def _load_one(self, path: Path) -> None:
        try:
            data = json.loads(path.read_bytes())
            prepared = from_plain(data["claim"])
            names = [[str(name) for name in one] for one in data["cdi"]]
            if path.stem != prepared.uid or len(names) != len(prepared.given):
                raise ValueError("it is another claim's")
        except (ValueError, KeyError, TypeError) as error:
            # Its spec stays: containers of it may be started again. The kubelet has it undone, or prepared anew.
            logger.error("claim=damaged file=%s error=%r kept='as .damaged'", path, str(error))
            path.replace(self._damaged(path.stem))
            return
        self._records[prepared.uid] = (prepared, names)

    def _write(self, prepared: Prepared) -> list[list[str]]:
        """The record, then the spec; neither where one is refused.

        What an earlier allocation of the claim had goes first: who is killed in between leaves no spec of other GPUs.
        """
        spec, names = self._specs.make(prepared, gpus_of(prepared, self._offers))
        self._specs.remove(prepared.uid)
        self._record(prepared, names)
        self._specs.write(prepared.uid, spec)
        return names

    def _write_spec(self, prepared: Prepared) -> list[list[str]]:
        spec, names = self._specs.make(prepared, gpus_of(prepared, self._offers))
        if names != self._records[prepared.uid][1]:
            self._record(prepared, names)
        self._specs.write(prepared.uid, spec)
        return names

    def _record(self, prepared: Prepared, names: list[list[str]]) -> None:
        data = {"claim": prepared.to_plain(), "cdi": names}
        replace_file(self._directory / f"{prepared.uid}.json", json.dumps(data).encode())
        self._records[prepared.uid] = (prepared, names)

    def _forget(self, uid: str) -> None:
        self._specs.remove(uid)
        for path in (self._directory / f"{uid}.json", self._damaged(uid)):
            path.unlink(missing_ok=True)
        self._records.pop(uid, None)

    def _damaged(self, uid: str) -> Path:
        return self._directory / f"{uid}.damaged"


def _check_uid(uid: str) -> None:
    """It becomes a part of a path."""
    if not UID.fullmatch(uid):
        raise ClaimError("its uid is none")


def _told(prepared: Prepared) -> str:
    return ",".join(
        f"{one.uuid}:{'-' if one.share is None else format(one.share, 'g')}" for one in prepared.given
    )
