# SPDX-License-Identifier: Apache-2.0
"""The checks that need a GPU, in one command (root). See docs/gpu-validation.md.

Examples:
  sudo .venv/bin/python -m benchmarks.gpu                        everything; some ten minutes
  sudo .venv/bin/python -m benchmarks.gpu --json gpu.json        and keep it
  sudo .venv/bin/python -m benchmarks.gpu --only coverage        one section, more than once if need be
  sudo .venv/bin/python -m benchmarks.gpu --python /opt/torch/bin/python   PyTorch is in another Python
  sudo .venv/bin/python -m benchmarks.gpu --source trace         shares on another account, without eBPF
  sudo .venv/bin/python -m benchmarks.gpu --simulated --seconds 2          the same code without a GPU

Exit status: 0 no bar was missed, 1 one was, 2 wrong usage, 3 this machine cannot: it says what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.gpu import account, coverage, fairness, freeze
from benchmarks.gpu.facts import look
from benchmarks.gpu.figures import Figure, complete, exit_status, render
from benchmarks.gpu.hosts import Host, Simulated
from benchmarks.gpu.real import Real
from benchmarks.machine import describe
from benchmarks.rig import SOURCES, BenchError, cpu_pressure_s
from fairsched.base.files import replace_file
from fairsched.errors import FairschedError

SECTIONS = ("coverage", "account", "freeze", "fairness")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--simulated", action="store_true", help="on the simulated GPU, whose truth is known")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window (20)")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section; default: all")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything there")
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU, as nvidia-smi counts (0)")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch (this one)")
    parser.add_argument(
        "--source", choices=SOURCES, default="ebpf", help="the daemon's account; but for ebpf: fairness only"
    )
    options = parser.parse_args(argv)
    if options.source != "ebpf":
        if wrong := set(options.only or ()) - {"fairness"}:
            parser.error(f"--only {wrong.pop()} is about the probes: not with --source {options.source}")
        options.only = ["fairness"]
    if not 1 <= options.seconds <= 600:
        parser.error("--seconds must be from 1 to 600")
    return options


class Checks:
    """The chosen sections on one host; what breaks makes its figures impossible and not the others."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.sections = [name for name in SECTIONS if not options.only or name in options.only]
        self._seconds = float(options.seconds)
        self._started_s, self._waited_s = time.monotonic(), cpu_pressure_s()
        self._figures: list[Figure] = []
        self._why: dict[str, str] = {}

    def run(self, host: Host) -> list[Figure]:
        if {"coverage", "freeze"} & set(self.sections):
            with self._guard("coverage", "freeze"), host.eyes() as probe:
                self._section("coverage", lambda: coverage.measure(host, probe, self._seconds))
                self._section("freeze", lambda: freeze.measure(host, probe, self._seconds))
        self._section("account", lambda: account.measure(host, self._seconds))
        self._section("fairness", lambda: fairness.measure(host, self._seconds))
        found: list[Figure] = []
        for name in self.sections:
            own = [figure for figure in self._figures if figure.bar.section == name]
            found += complete(own, [name], self._why.get(name, "was not measured"))
        return found

    def cpu_wait_ratio(self) -> float | None:
        """Part of the time so far; None where the kernel does not tell."""
        now_s = cpu_pressure_s()
        if now_s is None or self._waited_s is None:
            return None
        return (now_s - self._waited_s) / max(time.monotonic() - self._started_s, 0.001)

    def _section(self, name: str, measure: Any) -> None:
        if name not in self.sections:
            return
        print(f"{time.monotonic() - self._started_s:6.1f} s  {name}", file=sys.stderr, flush=True)
        with self._guard(name):
            self._figures += measure()

    @contextmanager
    def _guard(self, *names: str) -> Iterator[None]:
        try:
            yield
        except FairschedError as error:
            for name in names:
                self._why.setdefault(name, f"failed: {error}")
            print(f"        {', '.join(names)} failed: {error}", file=sys.stderr, flush=True)


def open_host(options: argparse.Namespace) -> tuple[Host, dict[str, Any]]:
    """The host and what is worth writing down about it. Raises HostUnsupported."""
    if options.simulated:
        return Simulated(), {"is_simulated": True}
    facts = look(options.python, os.environ, options.gpu)
    print(f"{facts.gpu.name}, driver {facts.driver}, PyTorch {facts.torch}", file=sys.stderr, flush=True)
    return Real(facts, options.python), {"is_simulated": False, **facts.to_plain()}


def write(path: Path, document: dict[str, Any]) -> None:
    """Whole or not at all. Raises BenchError."""
    try:
        replace_file(path, (json.dumps(document, indent=1) + "\n").encode(), mode=0o644)
    except OSError as error:
        raise BenchError(
            f"{path}: cannot be written: {error.strerror}", remedy="name another file"
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        with stop_signals():
            host, about = open_host(options)
            host.source = about["source"] = options.source
            checks = Checks(options)
            with host:
                figures = checks.run(host)
            about["cpu_wait_ratio"] = checks.cpu_wait_ratio()
            if options.json is not None:
                plain = {figure.bar.key: figure.to_plain() for figure in figures}
                write(options.json, {**describe(), **about, "seconds": options.seconds, "figures": plain})
    except KeyboardInterrupt:
        return INTERRUPTED
    except FairschedError as error:
        return say_error(error)
    print("\n".join(render(figures)))
    if about["cpu_wait_ratio"] is not None:
        print(
            f"\n{about['cpu_wait_ratio']:.0%} of the time some program here waited for a CPU: who is woken late"
        )
        print("seems to use the GPU meanwhile. Above 20 % the account's error is also the machine's.")
    return exit_status(figures)


if __name__ == "__main__":
    sys.exit(main())
