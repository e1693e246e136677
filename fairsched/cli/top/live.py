# SPDX-License-Identifier: Apache-2.0
"""The loop: news and keys in, frames out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from rich.text import Text

from fairsched.cli.top.draw import MIN_WIDTH, Paper, Trouble, draw
from fairsched.cli.top.feed import Feed, News, fetch
from fairsched.cli.top.terminal import Painter, Terminal, has_blocks
from fairsched.cli.top.view import View, press
from fairsched.errors import FairschedError
from fairsched.protocol.status import StatusReport

_ASK_AGAIN_S = 3600.0
"""Nothing is drawn without a reason; this is only so that no wait is for ever."""


def run_live(ask: Callable[[], Any], interval_s: float, view: View) -> int:
    """Until the person leaves. Returns the exit status: 0, or 128 + the signal that ended it."""
    blocks = has_blocks(sys.stdout.encoding)
    with Feed(ask, interval_s) as feed, Terminal(sys.stdin.fileno(), sys.stdout.fileno()) as terminal:
        news, page = News(), 1
        while not view.is_over and terminal.ended_by is None:
            width, height = terminal.size()
            frame = draw(news.report, view, Paper(width, height, blocks), trouble_of(news))
            view, page = frame.view, frame.page
            terminal.show(frame.lines, width)
            for key in terminal.wait([feed], _ASK_AGAIN_S):
                if key == "redraw":
                    terminal.forget()
                view = press(view, key, page)
            latest = feed.take()
            # a paused picture stays, but a daemon that is gone is said at once
            news = News(news.report, latest.error) if view.is_paused and news.report else latest
    return 0 if terminal.ended_by is None else 128 + terminal.ended_by


def run_plain(ask: Callable[[], Any], interval_s: float, view: View, out: TextIO) -> int:
    """For a terminal that cannot be drawn over: a picture every interval, below the last one, until Ctrl-C."""
    news = News()
    try:
        while True:
            news = fetch(ask, news)
            for line in plain_lines(news.report, view, _width(out), trouble_of(news), is_terminal=False):
                out.write(line + "\n")
            out.write("\n")
            out.flush()
            time.sleep(interval_s)
    except KeyboardInterrupt:
        return 130


def run_once(ask: Callable[[], Any], view: View, out: TextIO) -> None:
    """One picture of all tenants. Raises FairschedError when the daemon does not answer."""
    news = fetch(ask, News())
    if news.report is None:
        ask()  # raises what went wrong, with its remedy
        raise FairschedError(
            news.error or "no status", remedy="look at the daemon's log: journalctl -u fairsched"
        )
    for line in plain_lines(news.report, view, _width(out), None, is_terminal=out.isatty()):
        out.write(line + "\n")


def plain_lines(
    report: StatusReport | None, view: View, width: int, trouble: Trouble | None, *, is_terminal: bool
) -> list[str]:
    paper = Paper(width, None, has_blocks(sys.stdout.encoding))
    painter = Painter(is_terminal=is_terminal)
    lines: list[Text] = draw(report, view, paper, trouble).lines
    return [painter.paint(line, width).rstrip() for line in lines]


def trouble_of(news: News) -> Trouble | None:
    if news.error is None:
        return None
    return Trouble(news.error, news.report.wall_time_s if news.report is not None else 0.0)


def _width(out: TextIO) -> int:
    """Of the terminal; 80 for a file or a pipe."""
    try:
        return max(MIN_WIDTH, os.get_terminal_size(out.fileno()).columns) if out.isatty() else MIN_WIDTH
    except (OSError, ValueError):
        return MIN_WIDTH
