# SPDX-License-Identifier: Apache-2.0
"""Keeps rounds in a file, and plays them back: JSON lines, small enough for weeks and fast enough for replays.

A process is written once, before the first round that has it: ``{"process": NUMBER, ...}``. A round is one line:
``{"t": 1.5, "gpus": {UUID: [busy, used, total, index]}, "samples": [[NUMBER, UUID, ...]]}``, with the fields of
:class:`Sample` after the GPU; those at the end that are not known are left out. ``"tenants": {NAME: {UUID: seconds}}``
is there where it is known. A file that goes on from another begins with its processes anew, so that each can be played
alone.

Names of processes are what their owners wrote: they are data, escaped as JSON has it. A tape may have been made or
broken by anybody: each value is of its kind and no number beyond 1e18, or the line is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from fairsched.errors import FairschedError
from fairsched.guard.sample import GpuLoad, Process, Round, Sample

_PROCESS_KEYS = tuple(field.name for field in fields(Process))
_TUPLES = ("groups",)
_SAMPLE_WIDTH = len(Sample._fields) - 2
_PORTS = Sample._fields.index("remote_ports") - 2
_NUMBERS = Sample._fields.index("is_orphan") - 2
"""So many fields after the GPU are numbers; the others are truth values, and the ports."""
_MOST = 1e18
_INTEGERS = ("pid", "start_ticks", "uid")


class TapeError(FairschedError):
    """A tape that cannot be read."""


class Recorder:
    """Writes rounds to `file`, which starts empty."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._processes: dict[int, Process] = {}
        self._next = 0

    def write(self, moment: Round) -> int:
        """Append a round; returns the characters. Raises OSError. Processes that are not in it are forgotten."""
        lines, rows, seen = [], [], {}
        for sample in moment.samples:
            key = sample.process.key
            number = self._numbers.get(key)
            if number is None or self._processes[number] != sample.process:
                number, self._next = self._next, self._next + 1
                self._processes[number] = sample.process
                lines.append(json.dumps({"process": number, **_spare(asdict(sample.process))}))
            seen[key] = number
            rest = list(sample[2:])
            while rest and rest[-1] is None:
                rest.pop()
            rows.append([number, sample.gpu, *rest])
        self._numbers = seen
        self._processes = {number: self._processes[number] for number in seen.values()}
        gpus = {
            uuid: [load.busy_ratio, load.used_bytes, load.total_bytes, load.index]
            for uuid, load in moment.gpus.items()
        }
        plain = {"t": round(moment.t_s, 3), "gpus": gpus, "samples": rows}
        if moment.tenants:
            plain["tenants"] = {name: dict(by_gpu) for name, by_gpu in moment.tenants.items()}
        lines.append(json.dumps(plain))
        text = "\n".join(lines) + "\n"
        self._file.write(text)
        return len(text)


def play(lines: Iterable[str], name: str = "the tape") -> Iterator[Round]:
    """The rounds, in order. Raises TapeError with the line; half a last line, as a crash leaves it, is left out."""
    processes: dict[int, Process] = {}
    for number, line in enumerate(lines, 1):
        try:
            plain = json.loads(line)
            if "process" in plain:
                processes[plain.pop("process")] = _process(plain)
            else:
                yield _round(plain, processes)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if not line.endswith("\n"):
                return
            raise TapeError(
                f"{name}:{number}: not a line of a recording: {error!r}",
                remedy="give a file that fairsched has written, or take the line out",
            ) from None


def play_files(paths: Iterable[Path]) -> Iterator[Round]:
    """The rounds of one file after the other. Raises TapeError."""
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                yield from play(file, str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise TapeError(f"{path}: {error}", remedy="give a file that can be read") from None


def _spare(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if value not in (None, "", ())}


def _process(plain: dict[str, Any]) -> Process:
    known = {key: plain[key] for key in _PROCESS_KEYS if key in plain}
    for key, value in known.items():
        if (key in _INTEGERS and type(value) is int) or key == "started_s":
            _number(value)
        elif key in _TUPLES:
            if not all(isinstance(name, str) for name in value):
                raise ValueError(f"{key}: a name is no text")
        elif key in _INTEGERS or not isinstance(value, str):
            raise ValueError(f"{key}: {str(value)[:40]!r} is of another kind")
    for key in _TUPLES:
        if key in known:
            known[key] = tuple(known[key])
    return Process(**known)


def _round(plain: Mapping[str, Any], processes: Mapping[int, Process]) -> Round:
    samples = []
    for number, gpu, *rest in plain["samples"]:
        if len(rest) > _PORTS and rest[_PORTS] is not None:
            rest[_PORTS] = tuple(map(_integer, rest[_PORTS]))
        _check(gpu, rest)
        samples.append(Sample(processes[number], gpu, *rest[:_SAMPLE_WIDTH]))
    for load in plain.get("gpus", {}).values():
        for value in load:
            _number(value)
    return Round(
        float(_number(plain["t"])),
        tuple(samples),
        {uuid: GpuLoad(*load) for uuid, load in plain.get("gpus", {}).items()},
        {
            name: {gpu: _number(seconds) for gpu, seconds in by_gpu.items()}
            for name, by_gpu in plain.get("tenants", {}).items()
        },
    )


def _check(gpu: Any, rest: list[Any]) -> None:
    """Of a sample. Raises ValueError, TypeError."""
    if not isinstance(gpu, str):
        raise ValueError("a GPU is no text")
    for value in rest[:_NUMBERS]:
        if value is not None and not (0 <= value < _MOST and value is not True and value is not False):
            raise ValueError(f"{value!r} is no count")
    for value in rest[_NUMBERS:]:
        if not (value is None or value is True or value is False or isinstance(value, tuple)):
            raise ValueError(f"{str(value)[:40]!r} is no truth value")


def _number(value: Any) -> Any:
    """None, too. Raises ValueError."""
    if value is not None and (type(value) not in (int, float) or not -_MOST < value < _MOST):
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{str(value)[:40]!r} is no port")
    return value
