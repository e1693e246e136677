# SPDX-License-Identifier: Apache-2.0
"""A tenant that is an unmodified numba-cuda program: it launches kernels one by one, and waits for them.

    python -m benchmarks.numba_tenant --kernels 20 --kernel-us 473,967 --gap-us 200 --seconds 10

Problem. Loads of our own call libcuda as we think that programs do. This one calls it as numba-cuda and cuda-bindings
do: arguments are pointers, modules are compiled on arrival, Python lies between two launches.

Approach. A step is ``kernels`` launches, ``gap_us`` of sleep after each, then ``cuda.synchronize()``. The kernels of
``kernel_us`` are launched in turn. On the simulated GPU a kernel computes nothing and lasts as long as
FAIRSCHED_SIM_KERNEL_US says, which the program sets for itself; on a real GPU it lasts as long as it lasts.
numba-cuda is large, so it has a Python of its own (``make setup-numba``), and this module imports it when it runs only.

Output: two lines of JSON. The first when all kernels are compiled and have run once, the second at the end.
Exit status: 0, also after SIGTERM; 2 for wrong usage; 3 without numba-cuda.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv-numba/bin/python"
"""Where ``make setup-numba`` puts it."""
VARIABLE = "FAIRSCHED_NUMBA_PYTHON"
"""Names another Python that has numba-cuda."""
MISSING = "could not import numba.cuda: sudo make setup-numba installs it (0.8 GB), or FAIRSCHED_NUMBA_PYTHON names one"
ELEMENTS = 1024
BLOCK = 128


@dataclass(frozen=True)
class NumbaLoad:
    """What one process does."""

    kernels: int = 20
    kernel_us: tuple[float, ...] = (500.0,)
    gap_us: float = 0.0
    seconds: float = 0.0
    """0: until it is stopped."""

    def __post_init__(self) -> None:
        if self.kernels < 1 or not self.kernel_us or min(self.kernel_us) <= 0:
            raise ValueError("there are kernels, and each lasts longer than nothing")
        if self.gap_us < 0 or self.seconds < 0:
            raise ValueError("gap_us and seconds are not negative")

    def command(self, python: Path) -> list[str]:
        """What is executed; with :func:`environment`."""
        durations = ",".join(f"{us:g}" for us in self.kernel_us)
        words = [str(python), "-m", "benchmarks.numba_tenant", "--kernels", str(self.kernels)]
        words += ["--kernel-us", durations, "--gap-us", f"{self.gap_us:g}", "--seconds", f"{self.seconds:g}"]
        return words


def environment() -> dict[str, str]:
    """Of the command, beside the caller's: it finds this package wherever it runs."""
    return {"PYTHONPATH": str(ROOT)}


def find_python() -> Path | None:
    """A Python that has numba-cuda; None when there is none."""
    named = os.environ.get(VARIABLE)
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('numba_cuda') is None)"
    for python in (Path(named) if named else PYTHON, Path(sys.executable)):
        if python.is_file() and subprocess.run([python, "-c", look], check=False).returncode == 0:
            return python
    return None


def kernel_name(index: int) -> str:
    """Compilers decorate it, and it is still a part of no other's."""
    return f"numba_step{index}_"


def durations(load: NumbaLoad) -> str:
    """For FAIRSCHED_SIM_KERNEL_US."""
    return ",".join(f"{kernel_name(index)}={us:g}" for index, us in enumerate(load.kernel_us))


def _make_kernels(cuda: Any, count: int) -> list[Any]:
    def step(values, factor):  # type: ignore[no-untyped-def]
        index = cuda.grid(1)
        if index < values.size:
            values[index] *= factor

    kernels = []
    for index in range(count):
        name = kernel_name(index)
        copy = types.FunctionType(step.__code__, step.__globals__, name, None, step.__closure__)
        copy.__qualname__ = name
        kernels.append(cuda.jit(copy))
    return kernels


def run(load: NumbaLoad, is_over: Callable[[], bool], say: Callable[..., None]) -> None:
    """Until it is over."""
    import numpy
    from numba import cuda

    kernels = _make_kernels(cuda, len(load.kernel_us))
    values = cuda.to_device(numpy.ones(ELEMENTS, dtype=numpy.float32))
    blocks = ELEMENTS // BLOCK
    for kernel in kernels:
        kernel[blocks, BLOCK](values, 0.5)
    cuda.synchronize()
    say(ready=True)
    steps, start = 0, time.monotonic()
    while not is_over() and not (load.seconds and time.monotonic() - start >= load.seconds):
        for launch in range(load.kernels):
            kernels[launch % len(kernels)][blocks, BLOCK](values, 0.5)
            if load.gap_us:
                time.sleep(load.gap_us / 1e6)
        cuda.synchronize()
        steps += 1
    say(steps=steps, kernels=steps * load.kernels, seconds=round(time.monotonic() - start, 3))


def parse(argv: Sequence[str] | None) -> NumbaLoad:
    """Exits with 2 when it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.numba_tenant", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--kernels", type=int, default=20, metavar="N", help="launches of a step")
    parser.add_argument(
        "--kernel-us", default="500", metavar="US[,US...]", help="how long each lasts, in turn"
    )
    parser.add_argument("--gap-us", type=float, default=0.0, metavar="US", help="sleep after each launch")
    parser.add_argument("--seconds", type=float, default=0.0, metavar="S", help="0: until SIGTERM")
    args = parser.parse_args(argv)
    try:
        each = tuple(float(us) for us in args.kernel_us.split(","))
        return NumbaLoad(args.kernels, each, args.gap_us, args.seconds)
    except ValueError as error:
        parser.error(str(error))


def main(argv: Sequence[str] | None = None) -> int:
    load = parse(argv)
    os.environ.setdefault("FAIRSCHED_SIM_KERNEL_US", durations(load))
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    # The grid is small on purpose, and numba says so each time.
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    try:
        run(load, lambda: bool(stopped), lambda **what: print(json.dumps(what), flush=True))
    except ImportError as error:
        print(f"error: {MISSING} ({error})", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
