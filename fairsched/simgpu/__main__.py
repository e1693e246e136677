# SPDX-License-Identifier: Apache-2.0
"""``python -m fairsched.simgpu``: simulated GPUs by hand.

Examples:
  python -m fairsched.simgpu build                  compile, print where
  python -m fairsched.simgpu engine --gpus 2        run until Ctrl-C; print what tenants must export
  python -m fairsched.simgpu load decode trainer --seconds 5
                                                    run loads beside each other, print who got what
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import time
from dataclasses import asdict, replace

from fairsched.errors import FairschedError
from fairsched.simgpu import PRESETS, GpuSpec, SimHost, build


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fairsched.simgpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="compile the engine, the libraries and the loads")
    engine = commands.add_parser("engine", help="run simulated GPUs until Ctrl-C")
    load = commands.add_parser("load", help="run loads beside each other and print the truth")
    load.add_argument("kinds", nargs="+", choices=sorted(PRESETS), metavar="KIND", help=", ".join(PRESETS))
    load.add_argument("--seconds", type=float, default=5.0)
    load.add_argument("--json", action="store_true", help="for machines")
    for command in (engine, load):
        command.add_argument("--gpus", type=int, default=1)
        command.add_argument("--slice-us", type=float, default=GpuSpec.slice_us)
        command.add_argument("--switch-us", type=float, default=GpuSpec.switch_us)
    return parser.parse_args(argv)


def _host(options: argparse.Namespace) -> SimHost:
    spec = GpuSpec(slice_us=options.slice_us, switch_us=options.switch_us)
    return SimHost([spec] * options.gpus)


def _engine(options: argparse.Namespace) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with _host(options) as host:
        for key, value in host.env().items():
            print(f"export {key}={shlex.quote(value)}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


def _load(options: argparse.Namespace) -> None:
    with _host(options) as host:
        workers = [
            host.spawn(replace(PRESETS[kind], device=i % options.gpus, seed=i + 1))
            for i, kind in enumerate(options.kinds)
        ]
        time.sleep(options.seconds)
        truths = {truth.pid: truth for truth in host.truth()}
        rows = [(worker, truths[worker.pid], worker.step_count()) for worker in workers]
    if options.json:
        print(json.dumps([{"name": w.name, "steps": steps, **asdict(t)} for w, t, steps in rows]))
        return
    print(f"{'load':14} {'gpu':>3} {'exec':>7} {'wait':>7} {'kernels':>8} {'steps':>7}")
    for worker, truth, steps in rows:
        lived_ns = truth.as_of_ns - truth.created_ns
        print(
            f"{worker.name:14} {truth.gpu:3} {truth.exec_ns / lived_ns:7.1%} {truth.wait_ns / lived_ns:7.1%}"
            f" {truth.kernels:8} {steps:7}"
        )


def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    try:
        if options.command == "build":
            print(build().engine.parent)
        elif options.command == "engine":
            _engine(options)
        else:
            _load(options)
    except FairschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
