# SPDX-License-Identifier: Apache-2.0
"""Keeps which libcuda files have probes, which wait for theirs, and which failed and when to try again.

Problem: any tenant may have as many files called libcuda as it likes, and the process that puts probes on them works on
one after the other. An attempt can fail for a reason that passes (no memory, a file that was just being written), and a
process whose libcuda has no probes must not be taken for one that hides. A file that keeps its probes after its
container has ended keeps the container's file system busy.

Approach: each file is charged to the tenant that had it mapped first. A tenant has a budget; what it has beyond that
gets no probes, which is its own loss. One request is under way at a time, and tenants have their turns. After a failure
a file is asked for again when it is found later, with back-off; until it has probes, whoever maps it is *unprobed*. A
file that nobody uses any more may be let go, and is when its tenant has no room for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fairsched.bpf.gpu_time import Dropped, Library
from fairsched.bpf.libcuda import LibraryFile

FileId = tuple[int, int]
"""Device and inode."""
BUDGET = 32
"""Files of one tenant: images with a libcuda of their own in use at a time. Each takes 30 links or 150 events."""
_FIRST_RETRY_NS = 1_000_000_000
_LAST_RETRY_NS = 60_000_000_000
_LONG_NS = 1_000_000_000
"""What took so long and failed is not tried again soon: the others wait for it."""
_FORGET_NS = 300_000_000_000
"""What failed and nobody was seen to map for so long is no longer held against the account."""
_ON_DISK_NS = 10_000_000_000
"""A file of the operator's choice is looked for every three seconds."""
_REFUSED_NS = 15_000_000_000
"""A process is read every five seconds."""


class Request(NamedTuple):
    """For the attacher: what to attach to, or what to let go."""

    file: LibraryFile | None
    drop: FileId | None = None


@dataclass
class _Failure:
    delay_ns: int
    retry_ns: int
    is_libcuda: bool


@dataclass
class _Entry:
    tenant: str | None
    """Who is charged; None: nobody, the operator chose it."""
    found_ns: int
    by_user: dict[int | None, LibraryFile] = field(default_factory=dict)
    """By processes that were seen to map it, how it is reached; None: on disk."""
    is_waiting: bool = True
    since_ns: int | None = None
    there: FileId | None = None
    """What the attacher calls it."""
    is_lasting: bool = True
    failure: _Failure | None = None
    unused_ns: int | None = None
    """Since when no user is left."""


class Unused(NamedTuple):
    """A file with probes that no living process is known to map."""

    key: FileId
    since_ns: int
    is_lasting: bool


class Attachments:
    """Knows which files have probes.

    Call :meth:`found` with each file found, :meth:`forget` with processes that are gone, and ask for what
    :meth:`request` says; :meth:`note` each answer.
    """

    def __init__(self) -> None:
        self._entries: dict[FileId, _Entry] = {}
        self._drops: list[FileId] = []
        self._asked: tuple[FileId, Request, int] | None = None
        """The request without an answer, and since when."""
        self._turns: list[str | None] = []
        """Tenants that were served last come last."""
        self._refused: dict[str, int] = {}
        """When a file was last refused to a tenant that has used up its budget."""

    # ---- what there is ----

    def found(self, file: LibraryFile, tenant: str | None, now_ns: int) -> None:
        """Take in that ``tenant`` maps a file; None: that the operator wants it to have probes."""
        key = (file.device, file.inode)
        entry = self._entries.get(key)
        if entry is None:
            # Of the many files of one look the first is enough to know.
            if tenant is not None and (self._refused.get(tenant) == now_ns or not self._has_room(tenant)):
                self._refused[tenant] = now_ns
                return
            entry = self._entries[key] = _Entry(tenant, now_ns)
        entry.found_ns, entry.unused_ns = now_ns, None
        entry.by_user[file.pid] = file
        if tenant is None:
            entry.tenant = None
        if entry.failure is not None and now_ns >= entry.failure.retry_ns:
            entry.is_waiting = True

    def forget(self, is_gone: Iterable[int], now_ns: int) -> None:
        """Take in that processes are gone, and what nobody was seen to map for long."""
        gone: set[int | None] = set(is_gone)
        for key, entry in list(self._entries.items()):
            for user in gone & entry.by_user.keys():
                del entry.by_user[user]
            if None in entry.by_user and now_ns - entry.found_ns > _ON_DISK_NS:
                del entry.by_user[None]
            if entry.by_user:
                continue
            if entry.unused_ns is None:
                entry.unused_ns = now_ns
            is_stale = entry.failure is None or now_ns - entry.found_ns > _FORGET_NS
            if entry.since_ns is None and is_stale and not self._is_asked(key):
                del self._entries[key]
        self._refused = {one: t_ns for one, t_ns in self._refused.items() if now_ns - t_ns < _REFUSED_NS}

    def unused(self) -> Iterator[Unused]:
        """Those that may be let go."""
        for key, entry in self._entries.items():
            if entry.unused_ns is not None and entry.since_ns is not None:
                yield Unused(key, entry.unused_ns, entry.is_lasting)

    def drop(self, key: FileId) -> None:
        """Let go of a file."""
        entry = self._entries.pop(key)
        if entry.there is not None:
            self._drops.append(entry.there)

    def _has_room(self, tenant: str) -> bool:
        own = [(key, entry) for key, entry in self._entries.items() if entry.tenant == tenant]
        if len(own) < BUDGET:
            return True
        idle = [
            (entry.unused_ns, key)
            for key, entry in own
            if entry.unused_ns is not None and not self._is_asked(key)
        ]
        if not idle:
            return False
        self.drop(min(idle)[1])
        return True

    # ---- what is asked ----

    def request(self, now_ns: int) -> Request | None:
        """What to ask the attacher for now; it is taken as asked for then. None: nothing, or it has yet to answer."""
        if self._asked is not None:
            return None
        if self._drops:
            drop = self._drops.pop(0)
            self._asked = (drop, Request(None, drop), now_ns)
            return self._asked[1]
        waiting: dict[str | None, FileId] = {}
        for key, entry in self._entries.items():
            if entry.is_waiting and entry.by_user:
                waiting.setdefault(entry.tenant, key)
        if not waiting:
            return None
        turn = min(waiting, key=lambda one: self._turns.index(one) if one in self._turns else -1)
        self._turns = [*(one for one in self._turns if one != turn and one in waiting), turn]
        key = waiting[turn]
        self._asked = (key, Request(next(reversed(self._entries[key].by_user.values()))), now_ns)
        return self._asked[1]

    def waited_ns(self, now_ns: int) -> int:
        """How long the attacher has owed an answer."""
        return 0 if self._asked is None else now_ns - self._asked[2]

    def _is_asked(self, key: FileId) -> bool:
        return self._asked is not None and self._asked[0] == key

    def note(self, answer: Library | Dropped, now_ns: int) -> bool:
        """Take in what became of a request; False = nothing new, it has failed before."""
        asked, self._asked = self._asked, None
        if asked is None or isinstance(answer, Dropped):
            return False
        key = asked[0]
        entry = self._entries.get(key)
        if entry is not None:
            entry.is_waiting = False
        if answer.error is None:
            self._attached(entry, key, answer, now_ns)
            return True
        if entry is None:
            return False
        if answer.is_gone:
            file = asked[1].file
            entry.by_user.pop(None if file is None else file.pid, None)
            entry.is_waiting = bool(entry.by_user)
            if not entry.by_user:
                del self._entries[key]
            return not entry.by_user
        before, first_ns = entry.failure, _FIRST_RETRY_NS if now_ns - asked[2] < _LONG_NS else _LAST_RETRY_NS
        delay_ns = first_ns if before is None else min(2 * before.delay_ns, _LAST_RETRY_NS)
        entry.failure = _Failure(delay_ns, now_ns + delay_ns, answer.is_libcuda)
        return before is None

    def _attached(self, entry: _Entry | None, key: FileId, answer: Library, now_ns: int) -> None:
        there = (answer.device, answer.inode)
        if entry is None or key[1] != answer.inode:
            # A name that led to another file by then says nothing of the one that was found: that one is found again.
            tenant = None
            if entry is not None:
                tenant = entry.tenant
                del self._entries[key]
            entry = self._entries.setdefault(there, _Entry(tenant, now_ns, unused_ns=now_ns))
        entry.is_waiting, entry.failure, entry.there = False, None, there
        entry.is_lasting = answer.is_lasting
        if entry.since_ns is None:
            entry.since_ns = now_ns

    # ---- what is known ----

    def is_known(self, key: FileId) -> bool:
        """Whether a file is charged to somebody: not so one beyond a budget."""
        return key in self._entries

    def since_ns(self, file: LibraryFile) -> int | None:
        """Since when a file has probes; None: it has none."""
        entry = self._entries.get((file.device, file.inode))
        return None if entry is None else entry.since_ns

    def is_unprobed(self, file: LibraryFile) -> bool:
        """Whether it is a libcuda to which an attempt to attach has failed, and none succeeded since.

        Not so with one by name only: nobody has to call through it, so it would be an excuse for everything.
        """
        entry = self._entries.get((file.device, file.inode))
        return entry is not None and entry.failure is not None and entry.failure.is_libcuda

    @property
    def unprobed(self) -> int:
        """Files that could not be attached to: calls through them are in no account."""
        return sum(entry.failure is not None for entry in self._entries.values())

    @property
    def is_attaching(self) -> bool:
        """Some file waits for its first answer."""
        return any(entry.is_waiting and entry.failure is None for entry in self._entries.values())

    @property
    def over_budget(self) -> frozenset[str]:
        """Tenants that have more files than :data:`BUDGET`, and no probes on the others."""
        return frozenset(self._refused)
