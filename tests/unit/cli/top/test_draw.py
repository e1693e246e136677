# SPDX-License-Identifier: Apache-2.0
"""The picture: it fits, it is still, and it says what it does not know."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest
from rich.text import Text

from fairsched.cli.top.draw import HELP, Paper, Trouble, draw
from fairsched.cli.top.rows import Order
from fairsched.cli.top.terminal import Painter, Terminal, frame_of, is_capable
from fairsched.cli.top.view import View
from fairsched.protocol.status import SliStatus
from tests.unit.cli.top.pictures import crowd, extreme, node, tenant
from tests.unit.protocol import fakes

SCREEN = Paper(80, 24)


def text(lines: list[Text]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


def test_the_screen() -> None:
    report = replace(fakes.status(), slis=SliStatus(3.25, 0.021, 0.031, True))
    assert text(draw(report, View(), Paper()).lines) == "\n".join(
        [
            "fairsched 0.1.0  enforce  ebpf  up 2 h 13 min           largest error 1.2 points",
            "SLI   queue p99 3.2 ms   SM stdev 2.1 %   token/s CV 3.1 %   fair",
            "GPU 0 GPU-5f2c1a90 NVIDIA L40S     ██████████████████▉  99.4 %     18.0/45.0 GiB",
            "TENANT         STATE      WT SHARE 0-100 %   USED   DUE   LAG TOK/S   P99   VRAM",
            "batch          held        1 ███┃▍           31.0  20.0 -62.0   n/a   n/a    n/a",
            "chat           run        4* ███████████┃    79.2  80.0  +8.2   n/a   n/a    n/a",
            "a-tenant-with… away        1                  n/a   n/a   n/a   n/a   n/a    n/a",
            "! 3 events were lost because a BPF map was full; the account of new processes m…",
        ]
    )


@pytest.mark.parametrize(
    "size", [(80, 24), (80, 25), (120, 40), (200, 60), (79, 23), (40, 10), (20, 5), (1, 1)]
)
@pytest.mark.parametrize("view", [View(), View(is_help=True), View(is_typing=True, needle="\x1b[2J" * 9)])
def test_a_frame_is_as_large_as_the_terminal_whatever_is_in_it(size: tuple[int, int], view: View) -> None:
    width, height = size
    for report in (extreme(), crowd(100), node(), node(gpus=()), None):
        for trouble in (None, Trouble("the daemon is away " * 9, 0.0)):
            lines = draw(report, view, Paper(width, height), trouble).lines
            assert len(lines) == height
            assert all(line.cell_len <= width for line in lines), text(lines)
            assert "\x1b" not in text(lines), "no name steers the terminal"


def test_columns_stand_below_their_titles() -> None:
    for width in (80, 90, 100, 160):
        lines = draw(extreme(), View(), Paper(width)).lines
        titles = next(line for line in lines if line.plain.startswith("TENANT"))
        rows = [line for line in lines if re.search("foreign| run ", line.plain)]
        assert len(rows) == 3
        assert {row.cell_len for row in rows} == {titles.cell_len} == {width}, text(lines)


def test_a_verdict_that_is_not_known_is_not_said() -> None:
    report = replace(fakes.status(), slis=SliStatus(None, None, None, None))
    line = draw(report, View(), Paper()).lines[1].plain
    assert line == "SLI   queue p99 n/a   SM stdev n/a   token/s CV n/a"


def test_more_tenants_than_lines_scroll() -> None:
    first = draw(crowd(100), View(), SCREEN)
    assert first.page == 20
    assert text(first.lines).count("\nt0") == 20
    assert "1-20 of 100 by lag" in text(first.lines)
    last = draw(crowd(100), replace(first.view, first=1 << 30), SCREEN)
    assert last.view.first == 80
    assert "t000" in text(last.lines)
    assert "81-100 of 100" in text(last.lines)


def test_no_line_of_the_table_is_given_to_what_can_be_done_without() -> None:
    """16 GPUs are eight lines and three warnings three; on a small terminal tenants come first."""
    report = replace(extreme(), warnings=("one", "two", "three"))
    small = text(draw(report, View(), Paper(80, 8)).lines)
    assert all(word in small for word in ("?[2Jteam", "面", "none"))
    large = text(draw(report, View(), SCREEN).lines)
    assert "! three" in large
    assert "15 " in large


def test_what_is_filtered_and_sorted_is_said() -> None:
    foot = text(draw(crowd(40), View(needle="t00", order=Order.NAME, is_paused=True), SCREEN).lines[-1:])
    assert foot.startswith("1-10 of 10 of 40, filter 't00' by name  PAUSED")
    assert "no tenant matches" in text(draw(crowd(3), View(needle="x"), SCREEN).lines)


def test_a_daemon_that_is_away_is_said_above_what_was_known_of_it() -> None:
    screen = text(draw(fakes.status(), View(), SCREEN, Trouble("nobody listens", 1_700_000_000.0)).lines)
    assert re.search(r"as of \d\d:\d\d:20, trying again: nobody listens", screen)
    assert "batch" in screen
    assert "trying again: nobody listens" in text(
        draw(None, View(), SCREEN, Trouble("nobody listens", 0.0)).lines
    )
    assert "asking the daemon" in text(draw(None, View(), SCREEN).lines)


def test_a_terminal_without_blocks_gets_letters() -> None:
    screen = text(draw(fakes.status(), View(), Paper(80, None, has_blocks=False)).lines)
    table = screen.partition("\n!")[0]
    assert "####" in table
    assert table.isascii(), table


def test_the_mark_is_where_the_due_is_and_the_colour_only_repeats_it() -> None:
    def colours(used: float) -> str:
        row = draw(node(tenant("x", used_ratio=used, entitled_ratio=0.5)), View(), Paper()).lines[-1]
        assert row.plain.index("┃") == 29 + (13 if used <= 0.5 else 9), "the bar is .5 or .75 of a GPU wide"
        return " ".join(str(span.style) for span in row.spans)

    assert "#009E73" in colours(0.5)
    assert "#E69F00" in colours(0.7)
    assert "#56B4E9" in colours(0.1)


def test_every_key_of_the_help_fits() -> None:
    assert all(len(f"{key:<14}{words}") <= 80 for key, words in HELP)


def test_without_colour_there_is_none_and_without_a_terminal_no_escape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    line = Text("x", style="red")
    assert Painter().paint(line, 80) == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Painter().paint(line, 80) == "x"
    assert Painter(is_terminal=False).paint(Text("x", style="bold"), 80) == "x"


def test_a_full_line_is_not_erased_behind_its_end() -> None:
    """The cursor waits on the last column then, and erasing would take its character."""
    assert (
        frame_of(iter([("full", True), ("short", False)]))
        == "\x1b[?2026h\x1b[Hfull\r\nshort\x1b[K\x1b[?2026l"
    )


def test_a_frame_is_one_write_and_the_same_frame_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda fd, data: written.append(data) or len(data))
    terminal = Terminal(0, 99)
    for report in (crowd(50), crowd(50), crowd(51)):
        terminal.show(draw(report, View(), SCREEN).lines, 80)
    assert len(written) == 2
    terminal.forget()
    terminal.show(draw(crowd(51), View(), SCREEN).lines, 80)
    assert len(written) == 3
    assert not any(b"\x1b[2J" in data for data in written), "nothing is cleared, so nothing flickers"


def test_a_pipe_and_a_dumb_terminal_are_no_place_for_a_picture() -> None:
    reader, writer = os.pipe()
    try:
        assert not is_capable({"TERM": "xterm"}, reader, writer)
    finally:
        os.close(reader)
        os.close(writer)


def test_no_warning_steers_the_terminal() -> None:
    report = replace(fakes.status(), warnings=("\x1b[2J\udcff\r away",))
    for paper in (SCREEN, Paper()):
        found = text(draw(report, View(), paper, Trouble("\x1b]0;x\x07", 0.0)).lines)
        assert all(line.isprintable() for line in found.split("\n"))
        assert "! ?[2J? away" in found
