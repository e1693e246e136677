# SPDX-License-Identifier: Apache-2.0
"""Keeps the audit log: who ended what, why, on which evidence, and what came of it.

Problem: an act on other people's processes must be explainable later, by somebody who does not trust whoever did it;
also where the power failed in between; and the log must not fill the disk.

Approach: lines of a hash chain (chain.py) in files ``NUMBER.jsonl``, named by their first entry; none is renamed or
written again. ``state.json`` has the head, the length of the last file, and what the oldest file that is kept follows:
so a log that was cut at its end, or lost its first file, is told from a whole one. An entry is on the disk, and the
state after it, when :meth:`Audit.write` returns. Who cannot write the entry before an act must not act.

What was left of an entry by a power cut, beyond the length in the state, is taken off by the next one, which says so
and has its hash. A whole entry beyond it was written and only its state is missing: it counts.

Limits: see chain.py. The state lies beside the log: who may write the one may write the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairsched.base.files import replace_file, sync_directory
from fairsched.base.text import utc
from fairsched.errors import FairschedError
from fairsched.reclaim import witness
from fairsched.reclaim.chain import Fault, Head, check, link, read

DIRECTORY = Path("/var/lib/fairsched/audit")
MAX_BYTES = 4 << 20
FILES = 32
"""128 MiB in all, some hundred thousand acts."""
_NAME = re.compile(r"(\d{12})\.jsonl")
_STATE = "state.json"


class AuditRefused(FairschedError):
    """The log cannot be written, so nothing is done."""


@dataclass(frozen=True)
class State:
    """What is known of the log beside it."""

    head: Head = field(default_factory=Head)
    file_bytes: int = 0
    """Of the last file."""
    start: Head = field(default_factory=Head)
    """What the oldest file that is kept follows: entries before it were dropped by rotation."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def of(cls, raw: bytes) -> State:
        """Raises ValueError for what is not byte for byte a state that was written."""
        try:
            plain = json.loads(raw)
            state = cls(Head(**plain["head"]), plain["file_bytes"], Head(**plain["start"]))
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if state.to_bytes() != raw:
            raise ValueError("not as it was written")
        return state


@dataclass(frozen=True)
class Verdict:
    """What :meth:`Audit.verify` found."""

    faults: tuple[Fault, ...]
    entries: int
    head: Head
    dropped: int
    """Entries that rotation has dropped, which nothing can be said of."""
    notes: tuple[str, ...] = ()


class Audit:
    """The log in `directory`. ``tell``: a copy of each entry, see witness.py."""

    def __init__(
        self,
        directory: Path = DIRECTORY,
        *,
        max_bytes: int = MAX_BYTES,
        files: int = FILES,
        tell: Callable[[str, Head], object] = witness.tell,
    ) -> None:
        self.directory = directory
        self._max_bytes, self._files, self._tell = max_bytes, files, tell

    # ---- writing ----

    def write(self, event: str, entry: Mapping[str, Any], summary: str, at_s: float | None = None) -> Head:
        """Append an entry; it is on the disk when this returns. ``summary``: for the journal.

        Raises AuditRefused when it cannot be, and then nothing of it is left.
        """
        now_s = time.time() if at_s is None else at_s
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                head = self._append({"time": utc(now_s), "at_s": round(now_s, 3), "event": event, **entry})
        except OSError as error:
            raise AuditRefused(
                f"{self.directory}: the audit log cannot be written ({error.strerror}), so nothing is done",
                remedy="use sudo" if isinstance(error, PermissionError) else "make room on its disk",
            ) from error
        self._tell(summary, head)
        return head

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time."""
        fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _append(self, entry: Mapping[str, Any]) -> Head:
        state, mended = self._settled()
        line, head = link(state.head, {**entry, **mended})
        path = self._files_there()[-1] if self._files_there() else None
        file_bytes, start = state.file_bytes, state.start
        if path is None or file_bytes + len(line) > self._max_bytes:
            path, file_bytes = self.directory / f"{head.seq:012d}.jsonl", 0
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                written = os.write(fd, line)
                if written != len(line):
                    raise OSError(28, os.strerror(28))
                os.fsync(fd)
                start = self._next_start(start)
                # With the state the entry counts.
                replace_file(self.directory / _STATE, State(head, file_bytes + len(line), start).to_bytes())
            except (OSError, AuditRefused):
                os.ftruncate(fd, file_bytes)
                raise
        finally:
            os.close(fd)
        for old in self._files_there()[: -self._files]:
            old.unlink()
        sync_directory(self.directory)
        return head

    def _settled(self) -> tuple[State, dict[str, Any]]:
        """The state, and what the next entry says of a write that was broken off. Raises AuditRefused."""
        files, state = self._files_there(), self._state() or State()
        if not files:
            if state.head.seq:
                raise _damaged(self.directory, "its files are missing")
            return state, {}
        raw = files[-1].read_bytes()
        if int(files[-1].stem) == state.head.seq + 1:
            beyond, file_bytes = raw, 0  # a new file, of which the state does not know yet
        else:
            beyond, file_bytes = raw[state.file_bytes :], state.file_bytes
            last = raw[:file_bytes].rstrip(b"\n").rpartition(b"\n")[2]
            found = read(last) if len(raw) >= file_bytes else "it is shorter than it was"
            if isinstance(found, str) or found[1] != state.head:
                raise _damaged(self.directory, f"{files[-1].name} does not end with entry {state.head.seq}")
        if not beyond:
            return replace_length(state, file_bytes), {}
        if b"\n" in beyond[:-1] or (not state.head.seq and len(files) > 1):
            raise _damaged(self.directory, f"{files[-1].name} has more than was written")
        whole = read(beyond[:-1]) if beyond.endswith(b"\n") and beyond.count(b"\n") == 1 else ""
        if not isinstance(whole, str) and whole[2] == state.head.hash and whole[1].seq == state.head.seq + 1:
            return State(whole[1], len(raw), state.start), {}
        with open(files[-1], "r+b") as file:
            file.truncate(file_bytes)
        lost = {"bytes": len(beyond), "sha256": hashlib.sha256(beyond).hexdigest()}
        return replace_length(state, file_bytes), {"broken_off": lost}

    def _next_start(self, start: Head) -> Head:
        """What the oldest file follows that stays when no more are kept than wanted. Raises AuditRefused."""
        files = self._files_there()
        if len(files) <= self._files:
            return start
        first = read(files[-self._files].read_bytes().partition(b"\n")[0])
        if isinstance(first, str):
            raise _damaged(self.directory, f"{files[-self._files].name}:1: {first}")
        return Head(first[1].seq - 1, first[2])

    # ---- reading ----

    def entries(self) -> Iterator[dict[str, Any]]:
        """The entries that can be read, oldest first. Raises FairschedError."""
        for _, line in self._lines():
            found = read(line)
            if not isinstance(found, str):
                yield found[0]

    def verify(self, noted: Head | None = None) -> Verdict:
        """Whether each byte is as it was written. ``noted``: a head that was kept elsewhere. Raises FairschedError."""
        notes: list[str] = []
        try:
            state = self._state()
        except AuditRefused as error:
            state, notes = None, [str(error)]
        lines = list(self._lines(state.start.seq if state is not None else 0))
        faults = [Fault(str(self.directory / _STATE), note) for note in notes]
        if state is None and not notes and lines:
            faults.append(
                Fault(str(self.directory / _STATE), "it is missing: whether the log was cut is not known")
            )
        found, head = check(lines, Head() if state is None else state.start, None)
        faults += found
        if state is not None and head != state.head:
            behind = state.head.seq + 1 == head.seq and not found
            if behind and self._follows(lines, state.head):
                notes.append(f"entry {head.seq} was written and its state was not: a power cut, or kill -9")
            else:
                end = lines[-1][0] if lines else str(self.directory)
                what = f"it ends with entry {head.seq}, and entry {state.head.seq} was written last: cut or replaced"
                faults.append(Fault(end, what))
        elif state is not None and not found and self._last_bytes() not in (None, state.file_bytes):
            what = f"the last file has {self._last_bytes()} bytes and had {state.file_bytes}: changed"
            faults.append(Fault(str(self.directory / _STATE), what))
        dropped = 0 if state is None else state.start.seq
        if noted is not None:
            known = {one[1] for one in (read(line) for _, line in lines) if not isinstance(one, str)}
            if noted.seq <= dropped and noted.seq:
                notes.append(f"entry {noted.seq} was dropped by rotation: nothing is known of it")
            elif noted.seq and noted not in known:
                faults.append(
                    Fault(str(self.directory), f"entry {noted.seq} is not the one that was noted: replaced")
                )
        return Verdict(tuple(faults), len(lines), head, dropped, tuple(notes))

    @staticmethod
    def _follows(lines: list[tuple[str, bytes]], head: Head) -> bool:
        last = read(lines[-1][1]) if lines else ""
        return not isinstance(last, str) and last[2] == head.hash

    def _lines(self, start_seq: int = 0) -> Iterator[tuple[str, bytes]]:
        """(file and line, bytes), from the entry after this one on."""
        for path in self._files_there():
            if int(path.stem) <= start_seq:
                continue  # rotation was about to remove it
            try:
                raw = path.read_bytes()
            except OSError as error:
                raise _unreadable(path, error) from None
            *lines, rest = raw.split(b"\n")
            for number, line in enumerate(lines, 1):
                yield f"{path.name}:{number}", line
            if rest:
                yield f"{path.name}:{len(lines) + 1}", rest + b" (no newline)"

    def _last_bytes(self) -> int | None:
        """Length of the last file that has an entry; None: there is none."""
        sizes = [path.stat().st_size for path in self._files_there()]
        return next((size for size in reversed(sizes) if size), None)

    def _files_there(self) -> list[Path]:
        """The files of the log, oldest first. Raises FairschedError."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.directory, error) from None
        return sorted(self.directory / name for name in names if _NAME.fullmatch(name))

    def _state(self) -> State | None:
        """None: there is none. Raises AuditRefused for one that cannot be understood."""
        path = self.directory / _STATE
        try:
            return State.of(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise _damaged(self.directory, f"{_STATE} is not as it was written") from None
        except OSError as error:
            raise _unreadable(path, error) from None


def replace_length(state: State, file_bytes: int) -> State:
    """The same state of a last file of this length."""
    return State(state.head, file_bytes, state.start)


def _damaged(directory: Path, what: str) -> AuditRefused:
    return AuditRefused(
        f"{directory}: the audit log was changed ({what})",
        remedy="look: fairsched audit verify; then keep the directory as evidence under another name",
    )


def _unreadable(path: Path, error: OSError) -> FairschedError:
    return FairschedError(f"{path}: {error.strerror}", remedy="use sudo")
