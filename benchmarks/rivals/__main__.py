# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.rivals NAME SETUP_JSON``, which is the object or a file with it; see the package."""

from __future__ import annotations

import sys
import time

from benchmarks.rivals.base import RivalError, Setup, control, die_with_parent, keep_signals, read_setup
from benchmarks.rivals.exclusive_token import TokenLaw
from benchmarks.rivals.hands import Freezer, HeldLog, Stopper
from benchmarks.rivals.truth import TruthMeter
from benchmarks.rivals.window_sigstop import WindowLaw
from fairsched.errors import FairschedError
from fairsched.simgpu.reader import SimReader

NAMES = ("window-sigstop", "token", "nvml-feedback")


def _run(name: str, setup: Setup) -> None:
    log = HeldLog(setup.held_log)
    hands = (Stopper if name == "window-sigstop" else Freezer)(setup.tenants, log)
    try:
        start_ns = time.monotonic_ns()
        if name == "nvml-feedback":
            from benchmarks.rivals import nvml_feedback  # the other two need no NVML

            meter = nvml_feedback.open_meter(setup.tenants)
            control(nvml_feedback.FeedbackLaw(setup.tenants, start_ns), meter.read, hands.act, _tell_ready)
            return
        truth = TruthMeter(SimReader(setup.sim_dir), setup.tenants)
        law = (WindowLaw if name == "window-sigstop" else TokenLaw)(setup.tenants, start_ns)
        control(law, truth.read, hands.act, _tell_ready)
    finally:
        hands.let_all_go()


def _tell_ready() -> None:
    print("ready", flush=True)


def main(arguments: list[str]) -> int:
    """The exit status: 0 when it was asked to end, 1 when it failed, 2 when it was called wrongly."""
    if len(arguments) != 2 or arguments[0] not in NAMES:
        print(f"usage: python -m benchmarks.rivals {'|'.join(NAMES)} SETUP_JSON", file=sys.stderr)
        return 2
    try:
        setup = read_setup(arguments[1])
    except RivalError as error:
        return _fail(error, 2)
    keep_signals()
    try:
        die_with_parent()
        _run(arguments[0], setup)
    except FairschedError as error:
        return _fail(error, 1)
    return 0


def _fail(error: FairschedError, status: int) -> int:
    print(f"error: {error}\n  remedy: {error.remedy}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
