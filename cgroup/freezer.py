# SPDX-License-Identifier: Apache-2.0
"""Holds and thaws cgroups through cgroup.freeze, so that nothing of ours can stay frozen.

Every hold is journalled before the freeze (law 3), has a deadline and is undone by :meth:`Freezer.close`.
A pause that is not ours is never thawed (law 4):

* found paused (its own cgroup.freeze is 1, or an ancestor is frozen): the hold is refused as FOREIGN;
* somebody writes 1 while we hold: nothing changes that could be read, but inotify counts the write. The
  pause is theirs from then on; we drop our claim and leave it frozen (FOREIGN);
* somebody writes 0 while we hold: the hold is over (RELEASED). We do not fight.

Freezing is asynchronous. ``hold`` writes and returns; ``settle`` learns without blocking which cgroups
have come to rest, how long that took, and what others did meanwhile. A daemon waits on ``fileno()``: a
settle that comes late measures too long a latency.

While frozen: a process that enters the cgroup freezes at once, SIGKILL works, and removing the cgroup
works once it is empty. One thread uses a Freezer; it is not thread-safe.

Accepted race: a write by somebody else within the microseconds between our read of the queue and our own
write merges with ours in inotify. Their closing of the file usually still tells.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairsched.cgroup.brake import BrakeBook, Held, result_of
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef
from fairsched.cgroup.patience import await_used
from fairsched.cgroup.state import CGROUP_EVENTS, CGROUP_FREEZE, read_asked, read_frozen
from fairsched.cgroup.watch import IN_CLOSE_WRITE, IN_MODIFY, Watch
from fairsched.errors import CgroupGone, KernelRefused

_SWEEP_NS = 100_000_000
"""All holds are looked at so often, if any: a cgroup that is removed need not make its file readable."""


@dataclass
class _Held(Held):
    """A hold of ours: its entry, and the descriptors through which it is ended."""

    freeze_fd: int
    events_fd: int
    watch: int
    asked_ns: int = 0
    """When 1 was written; 0 before that."""
    is_settled: bool = False
    is_polled: bool = True
    """epoll tells when there is news of it."""


class Freezer(BrakeBook[_Held]):
    """The hands. A context manager: leaving it thaws everything it holds."""

    def __init__(self, journal: Journal, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Raises HostUnsupported when inotify is exhausted: without it a foreign pause goes unnoticed."""
        super().__init__(journal, clock_ns)
        self._by_watch: dict[int, int] = {}
        self._swept_ns = 0
        self._watch = Watch()
        self._epoll = select.epoll()
        self._epoll.register(self._watch.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when ``settle`` has something to look at. Wait on it; never read from it."""
        return self._epoll.fileno()

    def hold(self, ref: CgroupRef, tenant: str, deadline_ns: int, reason: str) -> HoldResult:
        """Freeze a cgroup until ``thaw`` or ``deadline_ns`` (CLOCK_MONOTONIC), whichever comes first.

        HELD, ALREADY_HELD (nothing changes, also not the deadline), FOREIGN, GONE or EXPIRED. Raises
        KernelRefused when the journal or cgroup.freeze cannot be written, HostUnsupported when inotify
        is exhausted; then the cgroup is not frozen by us.
        """
        if ref.id in self._held:
            return result_of(HoldKind.ALREADY_HELD, self._held[ref.id].entry)
        since_ns = self._clock_ns()
        entry = Entry(ref.id, ref.path, tenant, reason, since_ns, deadline_ns, self._me, self._boot_id)
        if deadline_ns <= since_ns:
            return result_of(HoldKind.EXPIRED, entry)
        try:
            held = self._open(ref, entry)
        except CgroupGone:
            return result_of(HoldKind.GONE, entry)
        # known from here on, so that whatever interrupts us, close() finds it
        self._held[ref.id] = held
        try:
            if self._is_paused(held):
                return self._end(held, HoldKind.FOREIGN)
            self._journal.write(entry)
            return self._freeze(held)
        except OSError as error:
            return self._fail(held, error, ref.explain(error, CGROUP_FREEZE, "cannot freeze"))
        except BaseException:
            self._abandon(held)
            raise

    def thaw(self, cgroup_id: int) -> HoldResult:
        """End a hold: THAWED (verified), NOT_HELD, FOREIGN, RELEASED or GONE.

        Raises KernelRefused when the kernel keeps it frozen; the hold and its journal entry then stay,
        and the guardian tries again at the deadline.
        """
        held = self._held.get(cgroup_id)
        if held is None:
            return HoldResult(HoldKind.NOT_HELD, cgroup_id, "")
        try:
            self._read_watch()
            if cgroup_id not in self._held:  # the read just now ended it; settle() must not tell it twice
                return self._take_change(cgroup_id)
            if not read_asked(held.freeze_fd):
                return self._end(held, HoldKind.RELEASED)
            asked_ns = self._clock_ns()
            os.pwrite(held.freeze_fd, b"0", 0)
            write_ns = self._clock_ns() - asked_ns
            if read_asked(held.freeze_fd):
                raise OSError(errno.EAGAIN, "still frozen")
        except OSError as error:
            if error.errno == errno.ENODEV:
                return self._end(held, HoldKind.GONE)
            raise KernelRefused(
                f"{held.entry.path}/{CGROUP_FREEZE}",
                error.errno or 0,
                "cannot thaw",
                remedy="fairsched release",
            ) from error
        if not held.is_settled:  # it took at least this long, which is worth knowing
            self._latencies.learn(cgroup_id, asked_ns - held.asked_ns, is_lower_bound=True)
        result = self._end(held, HoldKind.THAWED, write_ns)
        self._read_watch()  # the end of a watch is an event, too: do not wake the daemon for it
        return result

    def pulse(
        self,
        cgroup_ids: Sequence[int],
        deadline_ns: int,
        reason: str,
        used: Callable[[], float],
        limit_ns: int,
    ) -> HoldKind:
        """Let cgroups we hold run until ``used()`` says 1 or more, and hold them again: nothing to open in between.

        ``used``: the part of what they may do that they have done, 0 while they have not begun. They are given
        ``limit_ns`` to begin, and as long from then on.

        HELD (all of them, until the new deadline), or THAWED: they did less in that time, or one of them
        is somebody else's or gone by now. Raises as ``thaw`` and ``hold`` do; then none is frozen by us.
        """
        members = [self._held[cgroup_id] for cgroup_id in cgroup_ids]
        is_held = False
        try:
            # Files take ten times as long as the thaw, so all of them come first: nobody runs unwatched meanwhile.
            are_ours = all([self._record_if_ours(held, deadline_ns, reason) for held in members])
            if (
                are_ours
                and all([self._let_go(held) for held in members])
                and await_used(used, self._clock_ns, limit_ns)
            ):
                is_held = all(
                    held.entry.cgroup_id in self._held and self._freeze(held).kind is HoldKind.HELD
                    for held in members
                )
        except OSError as error:
            raise KernelRefused(
                f"{members[0].entry.path}/{CGROUP_FREEZE}",
                error.errno or 0,
                "cannot freeze or thaw",
                remedy="fairsched release",
            ) from error
        finally:
            if not is_held:
                for held in members:
                    self._abandon(held)
        return HoldKind.HELD if is_held else HoldKind.THAWED

    def _record_if_ours(self, held: _Held, deadline_ns: int, reason: str) -> bool:
        """Put the next hold on record in place of this one. False when it is not ours any more."""
        self._read_watch()
        if held.entry.cgroup_id not in self._held or not read_asked(held.freeze_fd):
            return False
        self._record_next(held, deadline_ns, reason)
        return True

    def _let_go(self, held: _Held) -> bool:
        """Thaw. False when it is not ours any more."""
        cgroup_id = held.entry.cgroup_id
        os.pwrite(held.freeze_fd, b"0", 0)
        self._read_watch(own=cgroup_id)
        if cgroup_id not in self._held:
            return False
        if read_asked(held.freeze_fd):
            raise OSError(errno.EAGAIN, "still frozen")
        held.asked_ns, held.is_settled = 0, False
        return True

    def settle(self) -> list[HoldResult]:
        """What happened since the last call: SETTLED, FOREIGN, RELEASED, GONE. Never blocks."""
        self._read_watch()
        for held in self._with_news():
            try:
                # also of settled ones: a read is what makes fileno() quiet again
                is_frozen = read_frozen(held.events_fd)
            except OSError:
                self._changes.append(self._end(held, HoldKind.GONE))
                continue
            if is_frozen and not held.is_settled:
                held.is_settled = True
                latency_ns = self._clock_ns() - held.asked_ns
                self._latencies.learn(held.entry.cgroup_id, latency_ns)
                self._changes.append(result_of(HoldKind.SETTLED, held.entry, latency_ns))
        self._read_watch()  # holds that ended just now left an event that nobody need wake for
        changes, self._changes = self._changes, []
        return changes

    def _with_news(self) -> list[_Held]:
        """Holds of which cgroup.events may say something that was not read yet."""
        now_ns = self._clock_ns()
        if now_ns - self._swept_ns >= _SWEEP_NS:
            self._swept_ns = now_ns
            return list(self._held.values())
        ready = {fd for fd, _ in self._epoll.poll(0)}
        return [
            held
            for held in self._held.values()
            if not held.is_settled or held.events_fd in ready or not held.is_polled
        ]

    def close(self) -> list[HoldResult]:
        """Thaw everything we hold and give the descriptors back. Called twice it does nothing.

        What the kernel refuses to thaw stays in the journal for the guardian and ``fairsched release``.
        """
        results = self._thaw_all(list(self._held))
        for held in list(self._held.values()):
            self._drop(held)
        self._watch.close()
        self._epoll.close()
        return results

    def _open(self, ref: CgroupRef, entry: Entry) -> _Held:
        with contextlib.ExitStack() as undo:
            freeze_fd = ref.open_file(CGROUP_FREEZE, os.O_RDWR)
            undo.callback(os.close, freeze_fd)
            events_fd = ref.open_file(CGROUP_EVENTS, os.O_RDONLY)
            undo.callback(os.close, events_fd)
            try:
                watch = self._watch.add(freeze_fd, IN_MODIFY | IN_CLOSE_WRITE)
            except FileNotFoundError as error:
                raise CgroupGone(ref.path) from error
            undo.pop_all()
        self._by_watch[watch] = ref.id
        held = _Held(entry, freeze_fd, events_fd, watch)
        # epoll only wakes the daemon; what is true is read. A plain file (EPERM) is never waited for.
        try:
            self._epoll.register(events_fd, select.EPOLLPRI)
        except PermissionError:
            held.is_polled = False
        return held

    def _is_paused(self, held: _Held) -> bool:
        """Somebody else's pause, here or above. Also arms epoll: it reports changes since this read."""
        return read_frozen(held.events_fd) or read_asked(held.freeze_fd)

    def _freeze(self, held: _Held) -> HoldResult:
        cgroup_id = held.entry.cgroup_id
        self._read_watch(ignore=cgroup_id)
        if read_asked(held.freeze_fd):  # paused while we wrote the journal
            return self._end(held, HoldKind.FOREIGN)
        held.asked_ns = self._clock_ns()
        os.pwrite(held.freeze_fd, b"1", 0)
        write_ns = self._clock_ns() - held.asked_ns
        self._read_watch(own=cgroup_id)
        if cgroup_id not in self._held:
            return self._take_change(cgroup_id)
        return result_of(HoldKind.HELD, held.entry, write_ns)

    def _fail(self, held: _Held, error: OSError, explained: CgroupGone | KernelRefused) -> HoldResult:
        if isinstance(explained, CgroupGone):
            return self._end(held, HoldKind.GONE)
        self._abandon(held)
        raise explained from error

    def _abandon(self, held: _Held) -> None:
        """Undo a hold that was interrupted half way. What cannot be thawed stays ours until its deadline."""
        if held.entry.cgroup_id not in self._held:
            return
        with contextlib.suppress(KernelRefused):
            if held.asked_ns:
                # we may have been interrupted before our own write was read from the queue
                self._read_watch(own=held.entry.cgroup_id)
                self.thaw(held.entry.cgroup_id)
            else:
                self._end(held, HoldKind.NOT_HELD)

    def _read_watch(self, *, own: int | None = None, ignore: int | None = None) -> None:
        """Find the writes of others; a hold they ended goes to ``_changes``.

        ``own``: we wrote this one's file once since the last read. A close in the same batch is then
        somebody else's (we keep ours open), whose write merged with our own. Otherwise a close alone
        says nothing: opening the file without writing (touch) must not leave a cgroup frozen.
        ``ignore``: what happened to this one is about to be read from the file.
        """
        writes: dict[int, int] = {}
        closed: set[int] = set()
        for number, mask in self._watch.read():
            cgroup_id = self._by_watch.get(number)
            if cgroup_id is None or cgroup_id == ignore:
                continue
            if mask & IN_MODIFY:
                writes[cgroup_id] = writes.get(cgroup_id, 0) + 1
            elif mask & IN_CLOSE_WRITE:
                closed.add(cgroup_id)
        if own is not None:
            writes[own] = writes.get(own, 0) - 1 + (own in closed)
        for cgroup_id, count in writes.items():
            held = self._held.get(cgroup_id)
            if held is None or count <= 0:
                continue
            try:
                kind = HoldKind.FOREIGN if read_asked(held.freeze_fd) else HoldKind.RELEASED
            except OSError:
                kind = HoldKind.GONE
            self._changes.append(self._end(held, kind))

    def _take_change(self, cgroup_id: int) -> HoldResult:
        index = max(n for n, change in enumerate(self._changes) if change.cgroup_id == cgroup_id)
        return self._changes.pop(index)

    def _end(self, held: _Held, kind: HoldKind, latency_ns: int | None = None) -> HoldResult:
        """The cgroup is not ours any more, or never was: off the record and forgotten."""
        self._drop(held)
        if kind is HoldKind.GONE:
            self._latencies.forget(held.entry.cgroup_id)
        self._journal.remove(held.entry.name)
        return result_of(kind, held.entry, latency_ns)

    def _drop(self, held: _Held) -> None:
        self._held.pop(held.entry.cgroup_id, None)
        self._by_watch.pop(held.watch, None)
        self._watch.remove(held.watch)
        with contextlib.suppress(OSError):
            self._epoll.unregister(held.events_fd)
        os.close(held.events_fd)
        os.close(held.freeze_fd)
