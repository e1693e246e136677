# SPDX-License-Identifier: Apache-2.0
"""Thaws what the journal names and nothing else, whichever brake held it. Needs no daemon; twice does no harm.

Used by ``fairsched release``, by systemd's ExecStopPost, by the guardian and by the daemon when it
starts. What was done is returned as data, one :class:`Release` per file of the journal; one entry that
fails does not keep the others from being thawed.

Accepted race: between the death of the daemon and this code (milliseconds) somebody may pause a
cgroup that we hold; the pause writes a 1 over our 1 and cannot be seen any more. The guardian narrows it
(it watches the file while the daemon lives); law 3 (always thaw) goes before law 4 in the rest.
"""

from __future__ import annotations

import enum
import errno
import itertools
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from fairsched.base.process import ProcessId
from fairsched.cgroup import state, tree, v1
from fairsched.cgroup.journal import BrakeName, Corrupt, Entry, Journal, read_boot_id
from fairsched.cgroup.path import CGROUP_PROCS, CgroupRef, Mount, find_v1_mount
from fairsched.cgroup.share_file import put_back
from fairsched.cgroup.stopping import is_stopping, let_go
from fairsched.errors import CgroupGone, KernelRefused


class ReleaseKind(str, enum.Enum):
    """What became of one entry of the journal."""

    THAWED = "thawed"
    NOT_FROZEN = "not_frozen"
    """Nothing to do: somebody had thawed it, or it was never frozen."""
    GONE = "gone"
    """The cgroup does not exist any more."""
    OTHER_BOOT = "other_boot"
    """Left from before a reboot; its ids mean nothing now."""
    HANDED_OVER = "handed_over"
    """Somebody else paused it while we held it; the pause is theirs now."""
    KEPT = "kept"
    """Not released on purpose: the caller's filter said so (its daemon lives)."""
    CORRUPT = "corrupt"
    """Not readable as a hold, so nothing was thawed. See ``detail``."""
    FAILED = "failed"
    """The kernel refused; the entry stays for the next attempt. See ``detail``."""


@dataclass(frozen=True)
class Release:
    """What became of one entry."""

    kind: ReleaseKind
    name: str
    """Of the file in the journal."""
    cgroup_id: int | None = None
    path: str = ""
    tenant: str = ""
    detail: str = ""

    @property
    def is_clean(self) -> bool:
        """Nothing of ours is left frozen by this entry."""
        return self.kind not in (ReleaseKind.FAILED, ReleaseKind.CORRUPT, ReleaseKind.KEPT)


def release_all(
    journal: Journal,
    mount: Mount,
    *,
    only: Callable[[Entry], bool] | None = None,
    handed_over: Collection[str] = (),
    boot_id: str | None = None,
) -> list[Release]:
    """Thaw every hold on record whose cgroup still exists, and clean the record.

    ``only`` chooses entries (for example: those whose daemon is dead); None takes all of them, also
    those of a daemon that lives, which then sees them as released by somebody else. ``handed_over``
    names entries whose cgroup somebody else paused meanwhile: they are taken off the record and not
    thawed. ``boot_id`` is for tests. Raises nothing for a single entry: it appears as FAILED.
    """
    return release_entries(
        journal, mount, journal.entries(), only=only, handed_over=handed_over, boot_id=boot_id
    )


def release_entries(
    journal: Journal,
    mount: Mount,
    items: Iterable[Entry | Corrupt],
    *,
    only: Callable[[Entry], bool] | None = None,
    handed_over: Collection[str] = (),
    is_current: Callable[[Entry], bool] | None = None,
    boot_id: str | None = None,
) -> list[Release]:
    """:func:`release_all` for entries that were read before (the guardian's).

    ``is_current`` is asked right before a thaw whether the hold is still on record; by default the
    journal is. It says yes for entries that are remembered after somebody deleted the journal.
    """
    this_boot = read_boot_id() if boot_id is None else boot_id
    items = list(items)
    entries = [item for item in items if isinstance(item, Entry)]
    newest = {_what(entry): entry for entry in sorted(entries, key=lambda entry: entry.since_ns)}
    done: list[Release] = []
    due: list[Entry] = []
    for entry in entries:
        if entry.boot_id != this_boot:
            done.append(_finish(journal, entry, ReleaseKind.OTHER_BOOT))
        elif only is not None and not only(entry):
            done.append(_result(entry, ReleaseKind.KEPT))
        elif entry.brake is BrakeName.FREEZER and newest[_what(entry)] is not entry:
            # a hold is only made of a cgroup that is not frozen, so the older one had ended
            done.append(_finish(journal, entry, ReleaseKind.NOT_FROZEN))
        elif entry.name in handed_over:
            done.append(_finish(journal, entry, ReleaseKind.HANDED_OVER))
        else:
            due.append(entry)
    # cgroup v2 refuses to rename a cgroup, but the tree may be mounted elsewhere or be seen from another
    # cgroup namespace than the daemon's; the id finds the cgroup all the same
    paths = tree.find_ids(
        mount, {entry.cgroup_id for entry in due if not tree.is_at(mount, entry.path, entry.cgroup_id)}
    )
    for entry in due:
        path = paths.get(entry.cgroup_id, entry.path)
        if not (journal.has(entry.name) if is_current is None else is_current(entry)):
            done.append(_result(entry, ReleaseKind.NOT_FROZEN, detail="its owner ended the hold meanwhile"))
        elif entry.brake is BrakeName.CGPU:
            done.append(_put_back(journal, entry, path))
        elif entry.brake is BrakeName.FREEZER_V1:
            done.append(_thaw_groups(journal, mount, entry, path))
        elif entry.brake is BrakeName.SIGSTOP:
            later = newest[_what(entry)]
            done.append(_continue_one(journal, mount, entry, path, () if later is entry else later.stopped))
        else:
            done.append(_release_one(journal, mount, entry, path))
    done += [_release_corrupt(journal, mount, item) for item in items if isinstance(item, Corrupt)]
    return done


def _what(entry: Entry) -> tuple[int, BrakeName]:
    """What is held, and how."""
    return entry.cgroup_id, entry.brake


def _continue_one(
    journal: Journal, mount: Mount, entry: Entry, path: str, kept: Collection[ProcessId]
) -> Release:
    """Continue the processes that the entry names, wherever they are by now, but those of a later hold."""
    fresh = journal.load(entry.name)  # the daemon adds to it as it finds more
    stopped = fresh.stopped if isinstance(fresh, Entry) else entry.stopped
    try:
        if let_go(process for process in stopped if process not in kept):
            return _finish(journal, entry, ReleaseKind.THAWED, path)
    except KernelRefused as error:
        return _result(entry, ReleaseKind.FAILED, path, str(error))
    is_there = tree.is_at(mount, path, entry.cgroup_id)
    return _finish(journal, entry, ReleaseKind.NOT_FROZEN if is_there else ReleaseKind.GONE, path)


def _put_back(journal: Journal, entry: Entry, path: str) -> Release:
    """What the files of a vendor's module said before, where nobody else has written them since."""
    fresh = journal.load(entry.name)
    try:
        is_any = put_back(fresh.files if isinstance(fresh, Entry) else entry.files)
    except KernelRefused as error:
        return _result(entry, ReleaseKind.FAILED, path, str(error))
    return _finish(journal, entry, ReleaseKind.THAWED if is_any else ReleaseKind.NOT_FROZEN, path)


def _thaw_groups(journal: Journal, mount: Mount, entry: Entry, path: str) -> Release:
    """Thaw the groups of ours that the entry names, wherever they are by now; they are frozen by nobody else."""
    fresh = journal.load(entry.name)  # the daemon adds to it as it finds more
    groups = fresh.groups if isinstance(fresh, Entry) else entry.groups
    freezer = v1.V1Freezer(Mount(entry.v1_mount, v1=v1.FREEZER))
    if groups and not os.path.exists(f"{entry.v1_mount}/{CGROUP_PROCS}"):
        why = f"{entry.v1_mount}, where the freezer of cgroup v1 was mounted, is not there: mount it, and try again"
        return _result(entry, ReleaseKind.FAILED, path, why)
    moved = {group.id for group in groups if not tree.is_at(freezer.mount, group.path, group.id)}
    paths = tree.find_ids(freezer.mount, moved)
    is_any, refusal = False, None
    for group in groups:
        try:
            with CgroupRef.open(freezer.mount, paths.get(group.id, group.path)) as ref:
                is_any |= ref.id == group.id and freezer.thaw(ref)
        except CgroupGone:
            continue
        except KernelRefused as error:
            refusal = error
    if refusal is not None:
        return _result(entry, ReleaseKind.FAILED, path, str(refusal))
    is_there = is_any or tree.is_at(mount, path, entry.cgroup_id)
    kind = ReleaseKind.THAWED if is_any else ReleaseKind.NOT_FROZEN if is_there else ReleaseKind.GONE
    return _finish(journal, entry, kind, path)


def _release_one(journal: Journal, mount: Mount, entry: Entry, path: str) -> Release:
    """Thaw the cgroup of one entry and take it off the record; another cgroup at the path is not touched."""
    try:
        with CgroupRef.open(mount, path) as ref:
            if ref.id != entry.cgroup_id:
                return _finish(journal, entry, ReleaseKind.GONE)
            was_frozen = _thaw(ref)
        return _finish(journal, entry, ReleaseKind.THAWED if was_frozen else ReleaseKind.NOT_FROZEN, path)
    except CgroupGone:
        return _finish(journal, entry, ReleaseKind.GONE)
    except KernelRefused as error:
        return _result(entry, ReleaseKind.FAILED, path, str(error))


def _thaw(ref: CgroupRef) -> bool:
    """Thaw and verify; False when there was nothing to thaw. Raises CgroupGone, KernelRefused."""
    if not state.parse_freeze(ref.read(state.CGROUP_FREEZE).encode()):
        return False
    ref.write(state.CGROUP_FREEZE, "0")
    if state.parse_freeze(ref.read(state.CGROUP_FREEZE).encode()):
        raise KernelRefused(f"{ref.path}/{state.CGROUP_FREEZE}", errno.EAGAIN, "still 1 after 0 was written")
    return True


def _release_corrupt(journal: Journal, mount: Mount, item: Corrupt) -> Release:
    """Forget a broken file once it cannot matter any more; else keep it and say what a person can do."""
    cgroup_id = item.cgroup_id
    path = None if cgroup_id is None else tree.find_ids(mount, {cgroup_id}).get(cgroup_id)
    detail = item.why
    is_paused = False
    if path is not None:
        try:
            with CgroupRef.open(mount, path) as ref:
                is_paused = ref.id == cgroup_id and state.read_state(ref).is_asked
        except (CgroupGone, KernelRefused):
            is_paused = False
    stopped = [] if path is None else _stopped_in(mount, path)
    homes = [] if cgroup_id is None else _frozen_homes(cgroup_id)
    if homes:
        detail += (
            f"; {' '.join(homes)} FROZEN, by whom is not known: check, then echo THAWED > its {v1.STATE}"
        )
    elif stopped:
        pids = " ".join(map(str, stopped))
        detail += f"; in {path} processes are stopped, by whom is not known: check, then kill -CONT {pids}"
    elif is_paused:
        detail += f"; {path} is frozen, by whom is not known: check, then echo 0 > its {state.CGROUP_FREEZE}"
    else:
        try:
            journal.remove(item.name)
        except KernelRefused as error:
            detail += f"; {error}"
    return Release(ReleaseKind.CORRUPT, item.name, cgroup_id, path or "", detail=detail)


def _frozen_homes(cgroup_id: int) -> list[str]:
    """Where groups of v1 for this cgroup are that are frozen now."""
    mount = find_v1_mount(v1.FREEZER)
    if mount is None:
        return []
    freezer = v1.V1Freezer(mount)
    return [mount.absolute(path) for path in freezer.homes_of(cgroup_id) if freezer.is_paused(path)]


def _stopped_in(mount: Mount, path: str) -> list[int]:
    """The first few of its processes that are stopped."""
    processes = (ProcessId.of(pid) for pid in tree.read_pids_recursive(mount, path))
    return list(itertools.islice((one.pid for one in processes if one and is_stopping(one)), 8))


def _finish(journal: Journal, entry: Entry, kind: ReleaseKind, path: str | None = None) -> Release:
    """Take the entry off the record; only reached when nothing of ours is frozen by it."""
    try:
        journal.remove(entry.name)
    except KernelRefused as error:
        return _result(entry, ReleaseKind.FAILED, path, str(error))
    return _result(entry, kind, path)


def _result(entry: Entry, kind: ReleaseKind, path: str | None = None, detail: str = "") -> Release:
    where = entry.path if path is None else path
    return Release(kind, entry.name, entry.cgroup_id, where, entry.tenant, detail)
