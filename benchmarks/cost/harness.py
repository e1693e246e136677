# SPDX-License-Identifier: Apache-2.0
"""What all of these measurements need: a small C program that calls and times, and a command around it.

Approach. A program in C is compiled and started once. Each line on its standard input asks for some batches of calls;
it answers with the nanoseconds per call of each batch. What is compared (with and without) takes turns within one run,
so that whatever else the machine does falls on all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.machine import ROOT, describe
from benchmarks.rig import BenchError
from fairsched.errors import FairschedError

RESULTS = ROOT / "benchmarks/results"
_SOURCES = Path(__file__).resolve().parent


def compiled(source: str, directory: Path, *flags: str) -> Path:
    """The program made of the C file of that name beside this one. Raises BenchError."""
    program = directory / Path(source).stem
    command = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(_SOURCES / source), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{source} does not compile:\n{done.stderr.strip()}")
    return program


class Caller:
    """A running program that calls when it is asked to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.pid = process.pid
        self._requests, self._answers = process.stdin, process.stdout

    def ask(self, *words: object) -> list[float]:
        """Nanoseconds per call, a number per batch. Raises BenchError when it has ended."""
        self._requests.write(" ".join(map(str, words)) + "\n")
        self._requests.flush()
        line = self._answers.readline()
        if not line:
            raise BenchError("the program that calls has ended")
        return [float(word) for word in line.split()]


@contextlib.contextmanager
def calling(command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[Caller]:
    """The program, until the end of the block; ``env`` comes on top of ours."""
    with subprocess.Popen(
        command,
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Caller(process)
        finally:
            process.kill()


# ---- the command ----


def parser_of(kind: str, text: str | None, rounds: int) -> argparse.ArgumentParser:
    """With the option that all have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.cost {kind}",
        description=text,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, help=f"instead of {rounds}; the result is only shown")
    return parser


def command(
    run: Callable[[], dict[str, Any]], render: Callable[[dict[str, Any]], str], output: Path | None
) -> int:
    """Measures, shows and writes; the exit status. ``output``: None of what is not the whole measurement."""
    try:
        with stop_signals():
            about = describe()
            result = {**about, **run()}
    except KeyboardInterrupt:
        return INTERRUPTED
    except FairschedError as error:
        return say_error(error)
    print(render(result))
    if output is not None:
        output.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result.get("bar", {"is_met": True})["is_met"] else 1
