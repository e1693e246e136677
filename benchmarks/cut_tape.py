# SPDX-License-Identifier: Apache-2.0
"""Cuts a part out of a tape, small enough for a test: ``python -m benchmarks.cut_tape TAPE OUT --begin 12 --end 15``.

The part begins as for an account that starts there: tables, tenants and facts are those of that moment; contexts are
known from their next edge on, and who is held is not known to be. So rows differ from the recorded ones for a while; a
part from 0 on does not have that.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.tape import Frame, Tables, TapeError, Writer, frames
from benchmarks.tape_layout import Layouts, layouts
from fairsched.errors import FairschedError

_FACTS = ("gpus", "single_gpu_processes", "seen_running", "is_anybody_hidden", "intruded")
_NS = 1_000_000_000


class _Past:
    """What came before the part and holds in it."""

    def __init__(self, begin: dict[str, Any]) -> None:
        self.begin = begin
        self._tables = Tables()
        self._layouts = Layouts(begin["layouts"])
        self._facts: dict[str, Any] = {}
        self._answers: dict[str, dict[int, Any]] = {"tenants": {}, "started": {}}

    def take_in(self, frame: Frame) -> None:
        """One call more."""
        head, at = frame.head, 0
        self._facts.update({name: head[name] for name in _FACTS if name in head})
        for name, known in self._answers.items():
            known.update(dict(head.get(name, ())))
        for step in head["steps"]:
            if step[0] == "look":
                self._tables.apply(frame.blob[at : at + step[-1]], self._layouts)
            at += step[-1]

    def before(self, frame: Frame) -> Frame:
        """The frame, if it is the first."""
        empty = Tables()
        changes = empty.copy(self._tables.arrays)
        head = {**self._facts, **frame.head, "steps": [["look", len(changes)], *frame.head["steps"]]}
        for name, known in self._answers.items():
            head[name] = [*map(list, known.items()), *frame.head.get(name, ())]
        return Frame(head, changes + frame.blob)


def cut(tape: Path, out: Path, begin_s: float, end_s: float, *, has_notes: bool = False) -> None:
    """Times count from the first call on the tape. Raises TapeError where it was made with other structs."""
    past: _Past | None = None
    first_ns, is_begun, writer = None, False, Writer(out)
    for frame in frames(tape):
        head = frame.head
        first_ns = head["at"] if first_ns is None else first_ns
        t_s = (head["at"] - first_ns) / _NS
        if t_s > end_s:
            break
        if head.get("call") == "begin":
            if head["layouts"] != layouts():
                raise TapeError(f"{tape} was made with other structs", remedy="cut it with those sources")
            past, is_begun = _Past(head), False
        elif "note" in head or past is None:
            if has_notes and is_begun:
                writer.write(head, frame.blob)
        elif t_s < begin_s:
            past.take_in(frame)
        elif is_begun:
            writer.write(head, frame.blob)
        else:
            is_begun = True
            writer.write(past.begin)
            writer.write(*past.before(frame))
    writer.close()


def main(argv: list[str]) -> int:
    """Writes OUT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cut_tape")
    parser.add_argument("tape", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--begin", type=float, default=0.0, help="seconds from its first call")
    parser.add_argument("--end", type=float, required=True)
    parser.add_argument("--notes", action="store_true", help="keep what no account was given")
    args = parser.parse_args(argv)
    try:
        cut(args.tape, args.out, args.begin, args.end, has_notes=args.notes)
    except (FairschedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
