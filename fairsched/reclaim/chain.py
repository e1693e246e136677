# SPDX-License-Identifier: Apache-2.0
"""Links the lines of the audit log by hashes (pure), so that no byte of it changes unnoticed.

Problem: a log that can be edited proves nothing, and a hash of parsed JSON lets blanks, escapes and the order of keys
change.

Approach: a line is a JSON object whose first members are ``seq`` and ``prev`` and whose last is ``hash``: the SHA-256
of all bytes of the line before it. ``prev`` is the hash of the line before. So the bytes of the file themselves are
covered: a changed one breaks its own line, a line that is missing, moved or doubled breaks the next one.

Terms: the *head* is the last line's number and hash. Who knows it knows the whole log.

Limits: who may write the log may write another one from the first line on. Only a head that is kept elsewhere (the
journal has each; ``fairsched audit verify --head``) proves that this was not done.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GENESIS = "0" * 64
"""``prev`` of the first line."""
_TAIL = re.compile(rb',"hash":"([0-9a-f]{64})"}')
_TAIL_BYTES = len(b',"hash":"') + 64 + len(b'"}')


@dataclass(frozen=True)
class Head:
    """The end of a chain: number and hash of its last line. That of an empty one is number 0."""

    seq: int = 0
    hash: str = GENESIS

    def __str__(self) -> str:
        """As ``--head`` takes it."""
        return f"{self.seq}:{self.hash}"


@dataclass(frozen=True)
class Fault:
    """Something in the log that is not as it was written."""

    where: str
    """File and line."""
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def link(head: Head, entry: Mapping[str, Any]) -> tuple[bytes, Head]:
    """The next line, with its newline, and the head behind it. ``seq``, ``prev`` and ``hash`` are the chain's own."""
    seq = head.seq + 1
    body = {"seq": seq, "prev": head.hash, **entry}
    text = json.dumps(body, separators=(",", ":"), default=str).encode()[:-1]  # without the last brace
    digest = hashlib.sha256(text).hexdigest()
    return text + b',"hash":"' + digest.encode() + b'"}\n', Head(seq, digest)


def read(line: bytes) -> tuple[dict[str, Any], Head, str] | str:
    """Of one line without its newline: the entry, its head and ``prev``; a text says what is wrong with it."""
    tail = _TAIL.fullmatch(line[-_TAIL_BYTES:])
    if tail is None:
        return "it does not end in a hash: changed, or cut"
    digest = hashlib.sha256(line[:-_TAIL_BYTES]).hexdigest()
    if digest != tail[1].decode():
        return "its bytes do not have its hash: changed"
    try:
        entry = json.loads(line)
        seq, prev = entry["seq"], entry["prev"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "it has a hash and is no entry: not written by fairsched"
    if type(seq) is not int or not isinstance(prev, str):
        return "it has a hash and no number: not written by fairsched"
    return entry, Head(seq, digest), prev


def check(lines: Iterable[tuple[str, bytes]], start: Head, end: Head | None) -> tuple[list[Fault], Head]:
    """What is wrong with a log, and the head that was found.

    ``lines``: (where, line without its newline), in order. ``start``: what the first of them follows. ``end``: what the
    last is to be; None = not known. After a fault the check goes on from the line as it stands: a fault is told once.
    """
    faults: list[Fault] = []
    head: Head | None = start
    last = start
    """The last line that could be read."""
    where = "the log"
    for where, line in lines:
        found = read(line)
        if isinstance(found, str):
            faults.append(Fault(where, found))
            head = None  # what follows it can follow anything
            continue
        _, this, prev = found
        if head is not None and (this.seq != head.seq + 1 or prev != head.hash):
            faults.append(
                Fault(where, f"entry {this.seq} does not follow entry {head.seq}: cut or reordered")
            )
        elif head is None and this.seq <= last.seq:
            faults.append(Fault(where, f"entry {this.seq} comes after entry {last.seq}: reordered"))
        head = last = this
    if end is not None and (head is None or head != end):
        seq = "a broken one" if head is None else f"entry {head.seq}"
        faults.append(
            Fault(where, f"it ends with {seq}, and entry {end.seq} was written last: cut or replaced")
        )
    return faults, last
