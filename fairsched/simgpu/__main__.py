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
import contextlib
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from fairsched.base.files import replace_file
from fairsched.base.sd_notify import Notifier
from fairsched.errors import FairschedError
from fairsched.simgpu import PRESETS, ContextTruth, GpuSpec, SimHost, Worker, build
from fairsched.simgpu.guest import STATE_DIR, SimGuest

_ENDS = {signal.SIGINT, signal.SIGTERM}

_ENGINE = """\
Runs simulated GPUs until Ctrl-C or SIGTERM. What it prints first is the
environment of everything that is to see them: the daemon and the tenants.

In a shell:
  python -m fairsched.simgpu engine > sim.sh &
  . ./sim.sh
  python -m fairsched.simgpu load decode --seconds 5

As a service, with a file that systemd reads:
  systemd-run --unit=simgpu --service-type=notify \\
      python -m fairsched.simgpu engine --env-file /run/simgpu.env
"""
_LOAD = f"""\
Runs loads beside each other, in the cgroup in which it runs itself, and
prints what each really got. With {STATE_DIR} in the environment (engine
prints it) they join the GPUs of that engine; else they get GPUs of their own.

  decode      tokens of a small model: 20 kernels, then a wait
  prefill     the same at random moments
  burst       idle, then some steps at once
  trainer     steps that are queued ahead: a greedy tenant
  graph       decode with one CUDA graph for each token
  longkernel  few kernels, very long ones
  poll        sees the end of its work without a call
  nosync      launches for ever and waits for nothing
"""


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fairsched.simgpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="compile the engine, the libraries and the loads, print where")
    raw = argparse.RawDescriptionHelpFormatter
    engine = commands.add_parser(
        "engine", help="run simulated GPUs until Ctrl-C", description=_ENGINE, formatter_class=raw
    )
    engine.add_argument("--env-file", type=Path, metavar="FILE", help="write the environment there instead")
    load = commands.add_parser(
        "load",
        help="run loads beside each other and print the truth",
        description=_LOAD,
        formatter_class=raw,
    )
    load.add_argument("kinds", nargs="+", choices=sorted(PRESETS), metavar="KIND", help="see above")
    load.add_argument("--seconds", type=float, default=5.0, help="how long; 0: until Ctrl-C  [default: 5]")
    load.add_argument("--json", action="store_true", help="for machines")
    for command in (engine, load):
        gpu = command.add_argument_group("simulated GPUs (not where an engine is joined)")
        gpu.add_argument("--gpus", type=int, metavar="N", help="how many  [default: 1]")
        gpu.add_argument("--slice-us", type=float, metavar="US", help=f"[default: {GpuSpec.slice_us:g}]")
        gpu.add_argument("--switch-us", type=float, metavar="US", help=f"[default: {GpuSpec.switch_us:g}]")
    options = parser.parse_args(argv)
    if options.command == "load":
        joined = os.environ.get(STATE_DIR)
        options.state_dir = Path(joined) if joined else None
        given = [options.gpus, options.slice_us, options.switch_us]
        if joined and given != [None, None, None]:
            load.error(f"{STATE_DIR} is set: the GPUs are those of the engine there")
        if options.seconds < 0:
            load.error("--seconds is not negative")
    return options


def _host(options: argparse.Namespace) -> SimHost:
    named = {"slice_us": options.slice_us, "switch_us": options.switch_us}
    spec = replace(GpuSpec(), **{name: value for name, value in named.items() if value is not None})
    return SimHost([spec] * (1 if options.gpus is None else options.gpus))


def _engine(options: argparse.Namespace) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    with _host(options) as host:
        if options.env_file is None:
            for key, value in host.env().items():
                print(f"export {key}={shlex.quote(value)}", flush=True)
        else:
            lines = [f"{key}={value}\n" for key, value in host.env().items()]
            replace_file(options.env_file, "".join(lines).encode(), is_durable=False, mode=0o644)
        Notifier().ready()
        signal.sigwait(_ENDS)


@contextlib.contextmanager
def _place(options: argparse.Namespace) -> Iterator[tuple[SimHost | SimGuest, int]]:
    """Where loads run, and how many GPUs there are."""
    if options.state_dir is not None:
        with SimGuest(options.state_dir) as guest:
            yield guest, guest.gpu_count
    else:
        with _host(options) as host:
            yield host, len(host.gpus)


def _load(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _place(options) as (place, gpus):
        workers = [
            place.spawn(replace(PRESETS[kind], device=i % gpus, seed=i + 1))
            for i, kind in enumerate(options.kinds)
        ]
        with contextlib.suppress(KeyboardInterrupt):
            if not options.seconds:
                print("running until Ctrl-C", file=sys.stderr, flush=True)
            threading.Event().wait(options.seconds or None)
        truths = {truth.pid: truth for truth in place.truth()}
        rows = [(worker, truths[worker.pid], worker.step_count()) for worker in workers]
    _print(rows, options)


def _print(rows: Sequence[tuple[Worker, ContextTruth, int]], options: argparse.Namespace) -> None:
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
        if error.remedy:
            print(f"  {error.remedy}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:  # before the loads had begun
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
