# SPDX-License-Identifier: Apache-2.0
"""The run from beginning to end: set the stage, two halves, the figures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from fairsched.demo import picture, report
from fairsched.demo.record import DaemonMeter, Recorder
from fairsched.demo.result import Result, judge_half, make_timeline, settle_s
from fairsched.demo.scene import TENANTS, entitlements
from fairsched.demo.screen import WIDTH, Screen, View, choose_screen
from fairsched.demo.stage import Stage, check_host, has_real_gpu
from fairsched.protocol.status import StatusReport

DEFAULT_PNG = Path("fairsched-demo.png")
_STARTING = "starting a simulated GPU, four tenants and the daemon ..."
_SAMPLE_NS = 100_000_000
_SAMPLES_PER_VIEW = 3
# Steps that are under way at the end count for their part inside, which is known when they end.
_TAIL_NS = 1_000_000_000


def play(*, seconds: float, png: Path | None, as_json: bool, is_live: bool) -> int:
    """See ``run_demo``."""
    png = png or DEFAULT_PNG
    check_host()
    picture.check_place(png)
    is_real = has_real_gpu()
    if is_real:
        click.echo("this host has an NVIDIA GPU; the demo leaves it alone and uses a simulated one", err=True)
    console = Console(highlight=False)
    if console.width > WIDTH:
        console.width = WIDTH
    with _signals_raise(), choose_screen(console, is_live=is_live) as screen:
        screen.wait(_STARTING)  # the very first time the simulated GPU is compiled, too
        with Stage() as stage:
            result = _perform(stage, screen, seconds)
    if not as_json:
        click.echo("\n".join([*report.table(result), *report.notes(result)]))
    path = png if picture.can_draw() else None
    if path is not None:
        picture.save_picture(result, path)
    if as_json:
        click.echo(json.dumps(report.document(result, png=path, has_real_gpu=is_real), indent=2))
    click.echo(picture.HOW_TO_INSTALL if path is None else f"picture: {path}", err=as_json)
    why = report.missed(result, load_ratio=os.getloadavg()[0] / (os.cpu_count() or 1))
    if why is None:
        return 0
    click.echo(
        f"error: {why}\n  remedy: try again; if it stays, report it with the output of `fairsched doctor`",
        err=True,
    )
    return 1


def _perform(stage: Stage, screen: Screen, seconds: float) -> Result:
    stage.wait_ready()
    half_ns = round(seconds * 1e9)
    show = _Show(stage, screen, seconds)
    first_ns = show.play_half(0, half_ns)
    stage.enforce()
    meter = DaemonMeter(stage.daemon_pid)
    second_ns = show.play_half(1, half_ns)
    daemon = meter.read()
    show.play_tail(_TAIL_NS)
    recording, due, skip_ns = show.recorder.recording(), entitlements(), round(settle_s(seconds) * 1e9)
    return Result(
        seconds=seconds,
        settle_s=settle_s(seconds),
        entitlement_ratio=due,
        unscheduled=judge_half(recording, first_ns + skip_ns, first_ns + half_ns, due),
        scheduled=judge_half(recording, second_ns + skip_ns, second_ns + half_ns, due),
        daemon=daemon,
        warnings=stage.status().warnings,
        timeline=make_timeline(recording, first_ns, second_ns, second_ns + half_ns, due),
    )


class _Show:
    """Samples and draws at a steady pace."""

    def __init__(self, stage: Stage, screen: Screen, seconds: float) -> None:
        self.recorder = Recorder(stage)
        self._stage = stage
        self._screen = screen
        self._seconds = seconds

    def play_half(self, half: int, half_ns: int) -> int:
        """Returns when it began."""
        start_ns = time.monotonic_ns()
        for count, now_ns in enumerate(_beats(start_ns, half_ns)):
            self._stage.check()
            if count % _SAMPLES_PER_VIEW:
                self.recorder.sample()
            else:
                self._screen.show(self._view(half, (now_ns - start_ns) / 1e9, self.recorder.take_account()))
        return start_ns

    def play_tail(self, tail_ns: int) -> None:
        for _ in _beats(time.monotonic_ns(), tail_ns):
            self.recorder.sample()

    def _view(self, half: int, elapsed_s: float, status: StatusReport) -> View:
        rates = {tenant.name: self.recorder.steps_per_s(tenant.name) for tenant in TENANTS}
        return View(half, elapsed_s, self._seconds, status, self.recorder.busy_ratio(), rates)


def _beats(start_ns: int, length_ns: int) -> Iterator[int]:
    """The time, every tenth of a second, from the beginning to the end and once at each."""
    next_ns, end_ns = start_ns, start_ns + length_ns
    while True:
        time.sleep(max(0, next_ns - time.monotonic_ns()) / 1e9)
        yield time.monotonic_ns()
        if next_ns >= end_ns:
            return
        next_ns = min(next_ns + _SAMPLE_NS, end_ns)


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = [(number, signal.signal(number, stop)) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
