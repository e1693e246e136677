# SPDX-License-Identifier: Apache-2.0
"""Keeps which libcuda files have probes, which wait for theirs, and which failed and when to try again.

Problem: an attempt can fail for a reason that passes (no memory, no room for another link, a file that was just being
written), and a process whose libcuda has no probes must not be taken for one that hides.

Approach: a file is asked for when it is found. After a failure it is asked for again when it is found later, with
back-off; until it has probes, whoever maps it is *unprobed*. A file that is gone is forgotten: if somebody still maps
it, it will be found again.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairsched.bpf.gpu_time import Library
from fairsched.bpf.libcuda import LibraryFile

FileId = tuple[int, int]
"""Device and inode."""
_FIRST_RETRY_NS = 1_000_000_000
_LAST_RETRY_NS = 60_000_000_000
_FORGET_NS = 300_000_000_000
"""What failed and nobody was seen to map for so long is no longer held against the account."""


@dataclass
class _Failure:
    delay_ns: int
    retry_ns: int
    found_ns: int
    is_libcuda: bool


class Attachments:
    """Knows which files have probes.

    Call :meth:`wants` with each file found, and ask for probes if it says so; :meth:`note` each answer.
    """

    def __init__(self) -> None:
        self._asked: dict[str, FileId] = {}
        """Requests without an answer, by path."""
        self._failed: dict[FileId, _Failure] = {}
        self._since_ns: dict[FileId, int] = {}

    def wants(self, file: LibraryFile, now_ns: int) -> bool:
        """Whether to ask for probes on this file now; it is taken as asked for then."""
        for old in [key for key, one in self._failed.items() if now_ns - one.found_ns > _FORGET_NS]:
            del self._failed[old]
        key = (file.device, file.inode)
        failure = self._failed.get(key)
        if failure is not None:
            failure.found_ns = now_ns
            if now_ns < failure.retry_ns:
                return False
        # Under one name at a time: answers are told apart by it.
        if key in self._since_ns or file.path in self._asked or key in self._asked.values():
            return False
        self._asked[file.path] = key
        return True

    def note(self, library: Library, now_ns: int) -> bool:
        """Take in what became of a request; False = nothing new, it has failed before."""
        asked, is_news = self._asked.pop(library.path, None), True
        if library.error is None:
            key = (library.device, library.inode)
            self._since_ns.setdefault(key, now_ns)
            self._failed.pop(key, None)
            # A name that led to another file by then says nothing of the one that was found.
            if asked is not None and asked[1] == library.inode:
                self._since_ns.setdefault(asked, now_ns)
                self._failed.pop(asked, None)
        elif asked is not None and library.is_gone:
            self._failed.pop(asked, None)
        elif asked is not None:
            before = self._failed.get(asked)
            delay_ns = _FIRST_RETRY_NS if before is None else min(2 * before.delay_ns, _LAST_RETRY_NS)
            self._failed[asked] = _Failure(delay_ns, now_ns + delay_ns, now_ns, library.is_libcuda)
            is_news = before is None
        return is_news

    def since_ns(self, file: LibraryFile) -> int | None:
        """Since when a file has probes; None: it has none."""
        return self._since_ns.get((file.device, file.inode))

    def is_unprobed(self, file: LibraryFile) -> bool:
        """Whether it is a libcuda to which an attempt to attach has failed, and none succeeded since.

        Not so with one by name only: nobody has to call through it, so it would be an excuse for everything.
        """
        failure = self._failed.get((file.device, file.inode))
        return failure is not None and failure.is_libcuda

    @property
    def unprobed(self) -> int:
        """Files that could not be attached to: calls through them are in no account."""
        return len(self._failed)

    @property
    def is_partial(self) -> bool:
        """Some of them are libcuda, see :meth:`is_unprobed`."""
        return any(failure.is_libcuda for failure in self._failed.values())

    @property
    def is_attaching(self) -> bool:
        """Some file waits for its first answer."""
        return any(key not in self._failed for key in self._asked.values())
