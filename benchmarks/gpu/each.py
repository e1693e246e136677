# SPDX-License-Identifier: Apache-2.0
"""Measures one thing after the other on the GPU of this host: what fails costs its own figures and no others."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.gpu.timed import TimedGpu
from benchmarks.gpu.without_torch import look_at_gpu
from fairsched.errors import FairschedError


def check_seconds(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Ends the program where they make no sense."""
    if not 0.1 <= seconds <= 600:
        parser.error("--seconds must be from 0.1 to 600")


def measure_shapes(
    argv: Sequence[str] | None,
    module: str,
    description: str | None,
    shapes: Mapping[str, Any],
    measure: Callable[[TimedGpu, str, float], dict[str, Any]],
    *,
    seconds: float,
    bulky: Sequence[str],
) -> int:
    """The command of a module that measures one shape after the other, each for so many seconds."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.gpu.{module}", description=description)
    parser.add_argument("--only", action="append", choices=sorted(shapes))
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    check_seconds(parser, options.seconds)
    return measure_each(
        options.only or list(shapes),
        lambda host, name: measure(host, name, options.seconds),
        json_path=options.json,
        bulky=bulky,
    )


def measure_each(
    names: Sequence[str],
    measure: Callable[[TimedGpu, str], dict[str, Any]],
    *,
    json_path: Path | None,
    bulky: Sequence[str],
) -> int:
    """Prints what was found, without what is ``bulky``, and keeps all of it. Exit status: 1 where one failed."""
    found: dict[str, Any] = {}
    try:
        facts = look_at_gpu()
        with stop_signals(), TimedGpu(facts) as host:
            for name in names:
                try:
                    one = found[name] = measure(host, name)
                except FairschedError as error:
                    print(f"{name}: {error}", file=sys.stderr, flush=True)
                    continue
                print(name, json.dumps({key: one[key] for key in one if key not in bulky}), flush=True)
                if json_path is not None:
                    json_path.write_text(json.dumps(found))
    except KeyboardInterrupt:
        return INTERRUPTED
    except FairschedError as error:
        return say_error(error)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(len(found) < len(names))
