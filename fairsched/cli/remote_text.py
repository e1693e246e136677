# SPDX-License-Identifier: Apache-2.0
"""What other hosts answered, for people.

Problem: an answer is data of somebody else: of another version, or of a host that lies. It must neither end this
program, nor steer the terminal, nor look like the answer of another host.
Approach: strings are made printable first; what cannot be rendered makes the answer a bad one. A host's name stands
at the left edge, and all that is its own is indented.
Terms: the *kind* of an answer is the command that gave it: ps, reclaim, status, show, verify, doctor.
Errors: none.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fairsched.base.printable import printable
from fairsched.base.text import NOT_KNOWN, WIDTH, counted, wrap
from fairsched.cli.text import cut, duration, short_command, short_size, table
from fairsched.errors import FairschedError
from fairsched.reclaim.remote import Answer, Result, harmless

if TYPE_CHECKING:
    from rich.table import Table

    from fairsched.reclaim.remote import Round

_INDENT = "  "
_MOST_NAMES = 6
_UNFIT = (
    FairschedError,
    TypeError,
    KeyError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)


def sound(kind: str, answer: Answer, *, is_full: bool = False) -> tuple[Answer, list[str]]:
    """The answer and its lines. One that cannot be understood is a bad one."""
    if answer.document is None:
        return answer, []
    try:
        json.dumps(answer.document, indent=2)
        document = harmless(answer.document)
        lines = _status(document, is_full) if kind == "status" else _KINDS[kind](document)
    except _UNFIT as error:
        why = f"it cannot be understood: {type(error).__name__} {error}"[:200]
        if answer.result is not Result.OK:
            return dataclasses.replace(answer, document=None), []
        return dataclasses.replace(answer, result=Result.BAD, why=why, document=None), []
    return answer, lines


def lines_of(answer: Answer, lines: Sequence[str]) -> list[str]:
    """A heading, and the lines below it."""
    why = f": {printable(answer.why)}" if answer.why else ""
    shown = wrap(f"{answer.host}: {answer.result.value}{why}", rest=_INDENT * 2)
    for line in lines:
        line = printable(line)
        if len(line) <= WIDTH - len(_INDENT):
            shown.append(f"{_INDENT}{line}".rstrip())
        else:
            blank = " " * (len(line) - len(line.lstrip()))
            shown += wrap(line.lstrip(), first=_INDENT + blank, rest=_INDENT + blank + "    ")
    return shown


def summary(answers: Sequence[Answer]) -> list[str]:
    """``47 of 50 hosts: ok; 3 no answer in time: gpu7, gpu9, gpu31``."""
    good = sum(answer.result is Result.OK for answer in answers)
    parts = [f"{good} of {counted(len(answers), 'host')}: ok"]
    for result in Result:
        hosts = [answer.host for answer in answers if answer.result is result]
        if result is not Result.OK and hosts:
            more = f" and {len(hosts) - _MOST_NAMES} more" if len(hosts) > _MOST_NAMES else ""
            parts.append(f"{len(hosts)} {result.value}: {', '.join(hosts[:_MOST_NAMES])}{more}")
    return wrap("; ".join(parts))


def live_table(round_: Round, most: int) -> Table:
    """Those that are at it and those that failed, as many as there is room for; then how many are done."""
    from rich.table import Table
    from rich.text import Text

    running, answers = round_.running, dict(round_.answers)
    rows = [(host, "asked", f"{since_s:.0f} s") for host, since_s in running.items()]
    rows += [
        (host, answer.result.value, printable(answer.why))
        for host, answer in answers.items()
        if answer.result is not Result.OK
    ]
    shown = Table("HOST", "STATE", "", box=None, pad_edge=False)
    for row in rows[: max(1, most - 2)]:
        shown.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    shown.caption = f"{len(answers)} of {counted(len(round_.hosts), 'host')} done"
    return shown


def _ps(document: Any) -> list[str]:
    rows = [("GPU", "TENANT", "USER", "PID", "VRAM", "AGE", "COMMAND")]
    notes: list[list[str]] = [[]]
    for one in _list(document):
        age_s, vram_bytes = one.get("age_s"), one["vram_bytes"]
        rows.append(
            (
                cut(_word(one.get("gpu_index", "-")), 6),
                cut(_word(one.get("tenant")), 12),
                cut(_word(one.get("user")), 8),
                cut(_word(one["pid"]), 10),
                short_size(vram_bytes),
                NOT_KNOWN if age_s is None else duration(age_s),
                short_command(one.get("command")),
            )
        )
        notes.append([f"  ! {_word(mark)}" for mark in _list(one.get("marks", []))])
    if len(rows) == 1:
        return ["no process uses a GPU"]
    lines: list[str] = []
    for row, said in zip(table(rows, right=(3, 4, 5)), notes, strict=True):
        lines += [cut(row, WIDTH - len(_INDENT)), *said]
    return lines


def _reclaim(document: Any) -> list[str]:
    """The plan, and what came of it."""
    targets, left = _list(document["plan"]["targets"]), _list(document["plan"]["left"])
    lines = [f"to end: {counted(len(targets), 'process', 'processes')}"]
    if not targets and not left:
        lines = ["nobody is chosen"]
    for one in targets:
        sizes = [has["vram_bytes"] for has in _list(one.get("evidence", []))]
        known = [size for size in sizes if size is not None]
        memory = f", {short_size(sum(known))}" if known else ""
        whose = one.get("user") or f"uid {one.get('uid')}"
        lines.append(f"  {_word(one['pid'])} {short_command(one['command'])[:60]}")
        lines.append(f"      {whose}; {one['why']}{memory}")
        lines += [f"      ! {note}" for note in _list(one.get("notes", []))]
    lines += [f"  not ended: {one['pid']} ({one['name']}): {one['why']}" for one in left]
    outcome = document.get("outcome")
    if outcome is None:
        return lines if document["is_done"] or not targets else [*lines, "nothing was done; --yes does it"]
    return [*lines, *_outcome(outcome)]


def _outcome(outcome: Any) -> list[str]:
    lines: list[str] = []
    for one in _list(outcome["processes"]):
        after = "" if one.get("after_s") is None else f" after {one['after_s']:.1f} s"
        why = f": {one['why']}" if one.get("why") else ""
        lines.append(f"{one['fate']}: {_word(one['pid'])}{after}{why}")
    lines += [str(text) for text in _list(outcome.get("warnings", []))]
    for gpu in _list(outcome.get("gpus", [])):
        lines.append(f"GPU {gpu['index']}: {'free of them' if gpu['is_free'] else 'NOT free'}")
        lines += [f"  ! {text}" for text in _list(gpu.get("still", []))]
    reset = outcome.get("reset")
    if reset is not None:
        lines.append(f"{'reset' if reset['is_done'] else 'not reset'}: {reset['text']}")
    return [*lines, "done" if outcome["is_whole"] else "done in part"]


def _status(document: Any, is_full: bool) -> list[str]:
    from fairsched.cli.common import report_of
    from fairsched.cli.status_text import Detail, render

    return render(report_of(document), Detail.FULL if is_full else Detail.HELD)


def _audit(document: Any) -> list[str]:
    from fairsched.cli.audit_text import render

    return render(_list(document))


def _verify(document: Any) -> list[str]:
    word = "whole" if document["is_whole"] else "CHANGED"
    lines = [f"{word}: {counted(document['entries'], 'entry', 'entries')}"]
    lines += [f"  ! {' '.join(f'{key} {value}' for key, value in one.items())}" for one in document["faults"]]
    lines += [f"  {note}" for note in _list(document.get("notes", []))]
    return [*lines, f"head: {_word(document['head'])}"]


def _doctor(document: Any) -> list[str]:
    """Only what is not well."""
    lines = ["fairsched can run here" if document["can_run"] else "that fairsched can run here is not known"]
    obstacles = document.get("choices", {}).get("obstacles", [])
    if obstacles:
        lines = [f"fairsched cannot run here: {'; '.join(map(_word, _list(obstacles)))}"]
    for one in _list(document["checks"]):
        if one["level"] != "ok":
            lines.append(f"{one['level']} {one['name']}: {one['fact']}")
            lines += [f"  remedy: {one['remedy']}"] if one.get("remedy") else []
    return lines


_KINDS: dict[str, Callable[[Any], list[str]]] = {
    "ps": _ps,
    "reclaim": _reclaim,
    "show": _audit,
    "verify": _verify,
    "doctor": _doctor,
}


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list was due, not {type(value).__name__}")
    return value


def _word(value: Any) -> str:
    """Of a name or a number."""
    if value is None:
        return "-"
    if not isinstance(value, str | int):
        raise TypeError(f"a name or a number was due, not {type(value).__name__}")
    return printable(str(value))
