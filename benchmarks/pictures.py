# SPDX-License-Identifier: Apache-2.0
"""The pictures of `fairsched top` and `fairsched report` in docs/img: ``sudo python -m benchmarks.pictures``.

They are of a run, not drawn by hand: the tenants of the demo on the simulated GPU, first only observed, then scheduled.
What the companion would write down is written here, with the tenants' own counts of tokens, which on a node come from
their metrics. A browser (Debian's package chromium) takes the pictures.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fairsched import __version__
from fairsched.cli.page.charts import make_board
from fairsched.cli.page.page import make_page
from fairsched.cli.top.draw import Paper, draw
from fairsched.cli.top.view import View
from fairsched.companion.history.part import HistoryPart
from fairsched.companion.history.read import read_past
from fairsched.companion.part import Moment
from fairsched.config.outward import History
from fairsched.demo.record import Recorder
from fairsched.demo.scene import TENANTS
from fairsched.demo.stage import Stage, check_host
from fairsched.errors import FairschedError
from fairsched.protocol.status import SliStatus, StatusReport, TokenRate, decision_from_plain

IMAGES = Path(__file__).resolve().parents[1] / "docs/img"
_BEAT_S = 0.1
_LOOKS = 5
"""Beats between two moments."""
_REPORT_PIXELS = (1080, 2560)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.pictures", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each half")
    parser.add_argument("--output", type=Path, default=IMAGES, help="directory")
    options = parser.parse_args(argv)
    try:
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if browser is None:
            raise FairschedError("no browser to take pictures with", remedy="apt install chromium")
        check_host()
        with tempfile.TemporaryDirectory(prefix="fairsched-pictures.") as scratch:
            take_pictures(Path(scratch), browser, options.seconds, options.output)
    except FairschedError as error:
        print(f"error: {error}\n  remedy: {error.remedy}", file=sys.stderr)
        return error.exit_status
    return 0


def take_pictures(work: Path, browser: str, seconds: float, output: Path) -> None:
    begin_s = time.time()
    report = play(work / "history", seconds)
    board = make_board(read_past(work / "history", begin_s, time.time()))
    page = make_page(board, node="the simulated node", version=__version__, now_s=time.time())
    (work / "report.html").write_text(page, encoding="utf-8")
    shoot(browser, work, "report", _REPORT_PIXELS, output)
    (work / "top.html").write_text(top_page(report), encoding="utf-8")
    shoot(browser, work, "top", (970, 305), output)


def play(history: Path, seconds: float) -> StatusReport:
    """Both halves; the last status is what `top` shows."""
    part = HistoryPart(history, History(enabled=True, interval_s=1))
    with Stage() as stage:
        stage.wait_ready()
        recorder, since_ns = Recorder(stage), time.monotonic_ns()
        for half in range(2):
            if half:
                stage.enforce()
            for beat in range(round(seconds / _BEAT_S)):
                stage.check()
                if beat % _LOOKS:
                    recorder.sample()
                else:
                    rates = {tenant.name: recorder.steps_per_s(tenant.name) for tenant in TENANTS}
                    report = with_rates(recorder.take_account(), rates)
                    answer = stage.ask("decisions", since_ns=since_ns)
                    decisions = [decision_from_plain(one) for one in answer["decisions"]]
                    since_ns = max([since_ns, *(one.t_ns for one in decisions)])
                    part.take(Moment(report, decisions))
                time.sleep(_BEAT_S)
    part.close()
    return report


def with_rates(report: StatusReport, rates: dict[str, float]) -> StatusReport:
    """Token rates of those that make tokens, and the service levels that follow from them."""
    making = [tenant for tenant in TENANTS if tenant.unit == "token"]
    per_weight = [rates[tenant.name] / tenant.weight for tenant in making]
    mean = sum(per_weight) / len(per_weight)
    cv = (sum((one - mean) ** 2 for one in per_weight) / len(per_weight)) ** 0.5 / mean if mean else None
    tokens = {tenant.name: TokenRate(rates[tenant.name]) for tenant in making}
    slis = SliStatus(None, None, cv, None if cv is None else cv < 0.05)
    tenants = tuple(replace(one, tokens=tokens.get(one.name)) for one in report.tenants)
    return replace(report, tenants=tenants, slis=slis)


def top_page(report: StatusReport) -> str:
    """The screen as a page: what a terminal with 96 columns shows."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=96,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    for line in draw(report, View(), Paper(96, 12)).lines:
        console.print(line, no_wrap=True, crop=True)
    form = (
        "<!doctype html><meta charset=utf-8><body style='margin:0;background:#14181d;color:#e6eaee'>"
        "<pre style='margin:20px;font:16px/1.35 \"DejaVu Sans Mono\",monospace'>{code}</pre>"
    )
    return console.export_html(inline_styles=True, code_format=form)


def shoot(browser: str, work: Path, name: str, pixels: tuple[int, int], output: Path) -> None:
    """NAME.html -> NAME.png."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={work}/browser", f"--window-size={pixels[0]},{pixels[1]}"]
    command += [f"--screenshot={work}/{name}.png", (work / f"{name}.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if not (work / f"{name}.png").exists():
        raise FairschedError(f"{browser} took no picture: {done.stderr[-300:]}", remedy="try another browser")
    os.makedirs(output, exist_ok=True)
    shutil.copyfile(work / f"{name}.png", output / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main())
