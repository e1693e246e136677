# SPDX-License-Identifier: Apache-2.0
"""Runs the guardian: waits for the daemon's death or for a hold past its deadline, then thaws.

See ``fairsched.guardian.process`` for what the process around it does. Everything here works without the daemon's
help: from the journal, the kernel's files and two kinds of notification (pidfd, inotify).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass

from fairsched.base.printable import printable, word
from fairsched.base.process import ProcessId
from fairsched.base.sd_notify import is_journal
from fairsched.base.text import utc
from fairsched.cgroup.journal import BrakeName, Corrupt, Entry, Journal
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.release import Release, ReleaseKind, release_entries
from fairsched.cgroup.state import CGROUP_FREEZE, read_asked
from fairsched.cgroup.watch import IN_MODIFY, IN_MOVED_TO, Watch
from fairsched.errors import FairschedError

_GATHER_MS = 100
"""Most holds are over by then and need no look at all. One that may last less than this minus the grace (50 ms, by
default) is ended by that much later than at deadline and grace."""
_RETRY_S = 0.05
_RETRIES = 200


@dataclass
class _Seen:
    """An entry of the journal and what we noticed about its cgroup.freeze since."""

    entry: Entry
    watch: int | None = None
    expects_write: bool = False
    """The daemon's own write of 1 was not yet seen; the first write is its."""
    is_foreign: bool = False
    """Written again after that while it was held: if it is frozen, that is somebody else's wish."""
    is_orphan: bool = False
    """Remembered although its file is gone, because the whole journal was deleted."""


class Keeper:
    """Watches the daemon and the journal, and thaws. Takes SIGTERM of its process."""

    def __init__(self, daemon: ProcessId, journal: Journal, mount: Mount, grace_ns: int) -> None:
        self._daemon = daemon
        self._journal = journal
        self._mount = mount
        self._grace_ns = grace_ns
        self._seen: dict[str, _Seen] = {}
        self._corrupt: dict[str, Corrupt] = {}
        self._is_leaving = False
        self._news = Watch()
        self._news.add(journal.fileno(), IN_MOVED_TO)
        # Waited for only while a write of the daemon's is due: its thaws, and our letting go of a watch, would wake us
        # for nothing.
        self._writes = Watch()
        self._pidfd = self._open_pidfd()
        wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_read = wake_read
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        self._urgent = select.poll()
        self._urgent.register(wake_read, select.POLLIN)
        if self._pidfd is not None:
            self._urgent.register(self._pidfd, select.POLLIN)

    def run(self) -> int:
        """Watch until the daemon is dead and its holds are undone; returns the exit status."""
        while True:
            is_dead = self._is_daemon_dead()
            self._refresh()  # after that question: a hold made in between must not be missed
            if is_dead:
                return self._release_dead()
            self._enforce_deadlines()
            if self._is_leaving and not self._seen:
                log("guardian leaves: told to, and nothing is held")
                return 0
            self._wait()

    def _open_pidfd(self) -> int | None:
        """None when the daemon is dead already, or its pid belongs to another process by now."""
        try:
            pidfd = os.pidfd_open(self._daemon.pid)
        except ProcessLookupError:
            return None
        # only now is the pid pinned: compare the start time after opening
        if ProcessId.of(self._daemon.pid) == self._daemon:
            return pidfd
        os.close(pidfd)
        return None

    def _is_daemon_dead(self) -> bool:
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def _on_term(self, _signal: int, _frame: object) -> None:
        self._is_leaving = True

    def _wait(self) -> None:
        """Sleep until the daemon dies, a signal, a deadline or news in the journal."""
        due_ns = min((seen.entry.deadline_ns for seen in self._seen.values()), default=None)
        if due_ns is not None:
            due_ns += self._grace_ns
        news = [self._news.fileno()]
        if any(seen.expects_write for seen in self._seen.values()):
            # unread it would merge with the next one, which is somebody else's
            news.append(self._writes.fileno())
        for fd in news:
            self._urgent.register(fd, select.POLLIN)
        ready = [fd for fd, _events in self._urgent.poll(None if due_ns is None else _ms_until(due_ns))]
        for fd in news:
            self._urgent.unregister(fd)
        if ready and set(ready) <= set(news):
            # Only news. Let more of it gather, and the daemon, which is in the middle of a hold, finish.
            self._urgent.poll(_GATHER_MS)
        self._clear_wake()

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _refresh(self) -> None:
        """Bring what we know up to date: writes to the files we watch, then the journal."""
        self._news.read()
        self._note_writes()
        if self._journal.is_deleted():
            log(f"guardian: {self._journal.directory} was deleted; remembering {len(self._seen)} holds")
            for seen in self._seen.values():
                seen.is_orphan = True
            self._journal.reopen()
            self._news.add(self._journal.fileno(), IN_MOVED_TO)
        names = set(self._journal.names())
        for name in [name for name, seen in self._seen.items() if name not in names and not seen.is_orphan]:
            self._forget(name)
        self._corrupt = {name: item for name, item in self._corrupt.items() if name in names}
        for name in names - self._seen.keys() - self._corrupt.keys():
            item = self._journal.load(name)
            if isinstance(item, Corrupt):
                self._corrupt[name] = item
                log(f"guardian: entry={name} is not readable: {item.why}")
            elif item is not None:
                self._seen[name] = self._watch_entry(item)
        self._read_again(names)

    def _read_again(self, names: set[str]) -> None:
        """Entries of a brake that adds to them while it holds: the last known is what is undone."""
        for name, seen in self._seen.items():
            if seen.entry.brake is not BrakeName.FREEZER and name in names:
                item = self._journal.load(name)
                if isinstance(item, Entry):
                    seen.entry = item

    def _watch_entry(self, entry: Entry) -> _Seen:
        """Watch cgroup.freeze for a pause by somebody else, which the daemon may be too stuck to notice."""
        seen = _Seen(entry)
        if entry.brake is not BrakeName.FREEZER:  # there is no file that a pause would be written to
            return seen
        try:
            with CgroupRef.open(self._mount, entry.path) as ref:
                if ref.id != entry.cgroup_id:
                    return seen
                fd = ref.open_file(CGROUP_FREEZE, os.O_RDONLY)
            try:
                seen.watch = self._writes.add(fd, IN_MODIFY)
                seen.expects_write = not read_asked(fd)
            finally:
                os.close(fd)
        except (FairschedError, OSError):
            return seen  # without it we only lose law 4 for a pause made in the last milliseconds
        # writes before the read just now are the daemon's, and what they did was read
        self._note_writes(ignore=seen.watch)
        return seen

    def _note_writes(self, ignore: int | None = None) -> None:
        by_watch = {seen.watch: seen for seen in self._seen.values() if seen.watch is not None}
        for number, mask in self._writes.read():
            seen = by_watch.get(number)
            if number == ignore or seen is None or not mask & IN_MODIFY:
                continue
            if seen.expects_write:
                seen.expects_write = False
            else:
                seen.is_foreign = True

    def _forget(self, name: str) -> None:
        seen = self._seen.pop(name)
        if seen.watch is not None:
            self._writes.remove(seen.watch)

    def _enforce_deadlines(self) -> None:
        limit_ns = time.monotonic_ns() - self._grace_ns
        late = {name for name, seen in self._seen.items() if seen.entry.deadline_ns <= limit_ns}
        if late:
            self._release(late, f"deadline passed by more than {self._grace_ns // 1_000_000} ms")

    def _release_dead(self) -> int:
        """Undo the holds of every dead daemon; keep trying while the kernel refuses some."""
        for _attempt in range(_RETRIES):
            dead = {name for name, seen in self._seen.items() if not seen.entry.daemon.is_alive()}
            results = self._release(dead, f"daemon pid={self._daemon.pid} is dead")
            if not any(result.kind is ReleaseKind.FAILED for result in results):
                return 0
            time.sleep(_RETRY_S)
            self._refresh()
        log("guardian gives up: some holds could not be undone; run fairsched release")
        return 1

    def _release(self, names: set[str], why: str) -> list[Release]:
        foreign = {name for name in names if self._seen[name].is_foreign}
        results = release_entries(
            self._journal,
            self._mount,
            [seen.entry for seen in self._seen.values()],
            only=lambda entry: entry.name in names,
            handed_over=foreign,
            is_current=lambda entry: self._seen[entry.name].is_orphan or self._journal.has(entry.name),
        )
        results = [result for result in results if result.kind is not ReleaseKind.KEPT]
        self._writes.read()  # our own writes must not look like somebody else's when we have to try again
        for result in results:
            if result.kind is not ReleaseKind.FAILED:
                self._forget(result.name)
            log(
                f"guardian: {result.kind.value} cgroup={word(result.path)} id={result.cgroup_id} "
                f"tenant={word(result.tenant)} why={why!r}"
                + (f" detail={result.detail!r}" if result.detail else "")
            )
        if any(result.kind is ReleaseKind.FAILED for result in results):
            time.sleep(_RETRY_S)  # a deadline that stays due must not become a busy loop
        return results


def _ms_until(when_ns: int) -> int:
    return max(0, -((time.monotonic_ns() - when_ns) // 1_000_000))


def log(line: str) -> None:
    """One line to stderr, or nowhere. A log that nobody reads must never keep us from thawing."""
    poll = select.poll()
    try:
        poll.register(2, select.POLLOUT)
        if poll.poll(0):
            head = "" if is_journal(os.environ, 2) else f"time={utc(time.time())} "
            os.write(2, printable(head + line).encode()[: select.PIPE_BUF - 1] + b"\n")
    except OSError:
        pass
