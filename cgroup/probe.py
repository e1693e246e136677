# SPDX-License-Identifier: Apache-2.0
"""Finds by trying what this host can do with cgroups: facts for ``fairsched doctor``, never read from a version.

None means "not known" (not tried, or not allowed to try), which is not the same as no.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from dataclasses import dataclass

from fairsched.cgroup import state, tree
from fairsched.cgroup.path import MOUNTINFO, CgroupRef, Mount, find_mount, find_v1_mount
from fairsched.cgroup.v1 import FREEZER, V1Freezer
from fairsched.cgroup.watch import IN_MODIFY, Watch
from fairsched.errors import FairschedError, HostUnsupported

_SETTLE_S = 1.0


@dataclass(frozen=True)
class CgroupFacts:
    """One host. ``why`` lists what kept a fact from being better, one sentence each."""

    mount: Mount | None
    """None: no cgroups by which processes are told apart, and nothing below is known."""
    controllers: tuple[str, ...] = ()
    """What the root of the mount offers; the freezer needs none of them."""
    is_writable: bool | None = None
    """We may make cgroups at the root of the mount (root, or a delegated subtree)."""
    has_freeze: bool | None = None
    """cgroup.freeze exists (Linux 5.2)."""
    can_freeze: bool | None = None
    """A scratch cgroup was frozen and thawed again."""
    freeze_latency_ns: int | None = None
    """Of that empty cgroup: the floor of what a hold costs here."""
    sees_foreign_writes: bool | None = None
    """inotify reports a write to cgroup.freeze that changes nothing; without it a pause by somebody else
    during a hold of ours cannot be told (law 4)."""
    why: tuple[str, ...] = ()

    @property
    def is_hybrid(self) -> bool | None:
        """v1 controllers are mounted beside cgroup v2."""
        return None if self.mount is None else self.mount.is_hybrid


def probe_host(mountinfo: str = MOUNTINFO, *, try_freeze: bool = True) -> CgroupFacts:
    """Ask this host. Raises nothing; makes and removes one empty scratch cgroup when ``try_freeze``."""
    try:
        mount = find_mount(mountinfo)
    except HostUnsupported as error:
        return CgroupFacts(None, why=(str(error),))
    if mount.v1:
        return CgroupFacts(
            mount, is_writable=os.access(mount.path, os.W_OK), has_freeze=False, can_freeze=False
        )
    why: list[str] = []
    controllers: tuple[str, ...] = ()
    try:
        with CgroupRef.open(mount, "/") as root:
            controllers = tuple(root.read("cgroup.controllers").split())
    except FairschedError as error:
        why.append(str(error))
    is_writable = os.access(mount.path, os.W_OK)
    if not is_writable:
        why.append(f"{mount.path} is not writable by uid {os.geteuid()}: run as root to try the freezer")
        return CgroupFacts(mount, controllers, False, _find_freeze(mount), why=tuple(why))
    if not try_freeze:
        return CgroupFacts(mount, controllers, True, _find_freeze(mount), why=tuple(why))
    return _probe_scratch(mount, controllers, why)


def v1_obstacle(mountinfo: str = MOUNTINFO) -> str | None:
    """Why tenants cannot be held with the freezer of cgroup v1; None when an empty group was frozen and thawed."""
    mount = find_v1_mount(FREEZER, mountinfo)
    if mount is None:
        return "the freezer of cgroup v1 is not mounted by itself"
    v1 = V1Freezer(mount)
    try:
        path = v1.make_home("/", 0)
        with CgroupRef.open(mount, path) as home:
            try:
                v1.write(home, True)
                is_frozen = v1.is_asked(home)
                v1.thaw(home)
            finally:
                tree.remove(mount, home)
    except FairschedError as error:
        return str(error)
    return None if is_frozen else f"{mount.path}: an empty group did not freeze"


def _find_freeze(mount: Mount) -> bool | None:
    """Look at any cgroup that exists: the root itself has no cgroup.freeze. None when there is no other."""
    for node in tree.walk(mount):
        with contextlib.suppress(FairschedError), CgroupRef.open(mount, node.path) as ref:
            return _has_freeze(ref)
    return None


def _has_freeze(ref: CgroupRef) -> bool:
    try:
        ref.read(state.CGROUP_FREEZE)
    except FairschedError:
        return False
    return True


def _probe_scratch(mount: Mount, controllers: tuple[str, ...], why: list[str]) -> CgroupFacts:
    try:
        ref = tree.create(mount, f"/fairsched.probe.{os.getpid()}")
    except FairschedError as error:
        return CgroupFacts(mount, controllers, False, _find_freeze(mount), why=(*why, str(error)))
    try:
        if not _has_freeze(ref):
            why.append("this kernel has no cgroup.freeze (Linux 5.2 brought it)")
            return CgroupFacts(mount, controllers, True, False, False, why=tuple(why))
        latency_ns = _freeze_scratch(ref, why)
        sees = _sees_foreign_writes(ref, why)
        return CgroupFacts(
            mount, controllers, True, True, latency_ns is not None, latency_ns, sees, tuple(why)
        )
    finally:
        with contextlib.suppress(FairschedError):
            tree.remove(mount, ref)
        ref.close()


def _freeze_scratch(ref: CgroupRef, why: list[str]) -> int | None:
    """Freeze and thaw the scratch cgroup; its latency, or None when that does not work.

    Not journalled, and need not be: nothing lives in it, and it is removed in any case.
    """
    try:
        events_fd = ref.open_file(state.CGROUP_EVENTS, os.O_RDONLY)
    except FairschedError as error:
        why.append(str(error))
        return None
    try:
        poll = select.poll()
        poll.register(events_fd, select.POLLPRI)
        state.read_frozen(events_fd)  # arms the notification
        start_ns = time.monotonic_ns()
        ref.write(state.CGROUP_FREEZE, "1")
        is_frozen = state.read_frozen(events_fd)
        if not is_frozen and poll.poll(int(_SETTLE_S * 1000)):
            is_frozen = state.read_frozen(events_fd)
        latency_ns = time.monotonic_ns() - start_ns
        ref.write(state.CGROUP_FREEZE, "0")
        is_thawed = not state.read_state(ref).is_paused
    except (FairschedError, OSError) as error:
        why.append(str(error))
        return None
    finally:
        os.close(events_fd)
    if not (is_frozen and is_thawed):
        why.append(f"an empty cgroup did not freeze and thaw within {_SETTLE_S} s")
        return None
    return latency_ns


def _sees_foreign_writes(ref: CgroupRef, why: list[str]) -> bool:
    watch = None
    try:
        watch = Watch()
        fd = ref.open_file(state.CGROUP_FREEZE, os.O_RDONLY)
        try:
            watch.add(fd, IN_MODIFY)
        finally:
            os.close(fd)
        ref.write(state.CGROUP_FREEZE, "0")  # it is 0 already
        if any(mask & IN_MODIFY for _number, mask in watch.read()):
            return True
        why.append("inotify does not report writes to cgroup.freeze")
    except (FairschedError, OSError) as error:
        why.append(str(error))
    finally:
        if watch is not None:
            watch.close()
    return False
