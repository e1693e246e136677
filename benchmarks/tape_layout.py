# SPDX-License-Identifier: Apache-2.0
"""Lets tapes outlive changes of abi.h: a struct of then becomes one of now, field by field, by name.

What is new in a struct is 0 in what is read from an older tape; what has gone, or has another size, is left out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

from fairsched.bpf import abi

TABLES: tuple[tuple[str, Any, int], ...] = (
    ("ctx", abi.Ctx, abi.MAX_CTXS),
    ("graphs", abi.Graphs, abi.MAX_CTXS),
    ("clock", abi.Clock, abi.MAX_SLOTS),
    ("count", ctypes.c_uint64, len(abi.Count)),
)
"""Name, struct and room of each."""
CTX, GRAPHS, CLOCK, COUNT = range(4)
Moves = list[tuple[int, int, int]]
"""From where to where, and how many bytes."""


def layout(kind: Any) -> dict[str, Any]:
    """Size, and fields in and in with their offsets: equal for equal layouts."""
    size = {"size": ctypes.sizeof(kind)}
    if issubclass(kind, ctypes.Array):
        return {**size, "of": layout(kind._type_), "length": kind._length_}
    if not issubclass(kind, ctypes.Structure):
        return size
    fields = {name: [getattr(kind, name).offset, layout(what)] for name, what, *_ in kind._fields_}
    return {**size, "fields": fields}


def layouts() -> dict[str, Any]:
    """Of all that a tape has raw, and the names of what is counted."""
    structs = {name: layout(kind) for name, kind, _ in TABLES}
    return {**structs, "edge": layout(abi.Edge), "counts": [what.name for what in abi.Count]}


def _moves(old: Mapping[str, Any], new: Mapping[str, Any], old_at: int = 0, new_at: int = 0) -> Iterator[Any]:
    if "fields" in old and "fields" in new:
        for name, (offset, what) in new["fields"].items():
            if name in old["fields"]:
                before, was = old["fields"][name]
                yield from _moves(was, what, old_at + before, new_at + offset)
    elif "of" in old and "of" in new:
        for one in range(min(old["length"], new["length"])):
            steps = one * old["of"]["size"], one * new["of"]["size"]
            yield from _moves(old["of"], new["of"], old_at + steps[0], new_at + steps[1])
    elif old == new:
        yield old_at, new_at, new["size"]


class Struct:
    """One kind of struct on one tape."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self.size = int(old["size"])
        """On the tape."""
        self._new_size = int(new["size"])
        self._moves: Moves | None = None if old == new else list(_moves(old, new))

    def now(self, data: bytes) -> bytes:
        """As it is laid out now."""
        if self._moves is None:
            return data
        found = bytearray(self._new_size)
        for old_at, new_at, length in self._moves:
            found[new_at : new_at + length] = data[old_at : old_at + length]
        return bytes(found)


class Layouts:
    """What is raw on one tape; ``said``: what :func:`layouts` was when it was made."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        now = layouts()
        self.tables = [Struct(said[name], now[name]) for name, _, _ in TABLES]
        self.edge = Struct(said["edge"], now["edge"])
        names = {name: index for index, name in enumerate(now["counts"])}
        self._counts = [names.get(name) for name in said["counts"]]

    def index(self, table: int, index: int) -> int | None:
        """Of now; None for what is not counted any more."""
        return self._counts[index] if table == COUNT else index
