# SPDX-License-Identifier: Apache-2.0
"""The page: whole, still, readable in light and dark, and with every number in a table."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairsched.cli import cli
from fairsched.cli.page import png
from fairsched.cli.page.charts import COLOURS, MAX_SHARES, Chart, Line, make_board, runs
from fairsched.cli.page.page import DARK, DARK_BACKGROUND, LIGHT, LIGHT_BACKGROUND, make_page
from fairsched.cli.page.scale import nice_step, number_text, ticks, time_ticks
from fairsched.cli.page.svg import HEIGHT, LARGE, draw
from fairsched.cli.page.tiles import tiles
from fairsched.companion.history.read import Past, TenantTotal, read_past
from tests.unit.cli.page import story

END = 1_700_000_000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "h"
    story.write(path, END, hours=1.0, more_tenants=30)
    return path


@pytest.fixture(scope="module")
def past(history: Path) -> Past:
    return read_past(history, END - 3600, END)


def page_of(past: Past) -> str:
    return make_page(make_board(past), node="node<1>", version="0.1.0", now_s=END)


class Checked(HTMLParser):
    """Every tag is closed, and nothing is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.loads: list[str] = []
        self.tables: list[list[list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "path"):
            self.open.append(tag)
        names = {name for name, _ in attrs}
        if tag in ("script", "link", "img", "iframe", "object", "use") or names & {
            "src",
            "href",
            "xlink:href",
        }:
            self.loads.append(tag)
        if any(name.startswith("on") for name in names):
            self.loads.append(f"{tag} runs something")
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Needs no end."""

    def handle_endtag(self, tag: str) -> None:
        if tag == "path":
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1].append(data)


def test_the_page_is_whole_and_loads_and_runs_nothing(past: Past) -> None:
    page = page_of(past)
    checked = Checked()
    checked.feed(page)
    assert checked.open == []
    assert checked.loads == []
    assert not re.search(r"https?:|url\(|@import|<script", page), "nothing comes from anywhere"
    assert "node&lt;1&gt;" in page
    assert len(page) < 600_000


def test_every_plot_is_well_formed_and_none_leaves_its_frame(past: Past) -> None:
    pictures = re.findall(r"<svg viewBox=\"0 0 \d+ \d+\" preserve[^>]* role.*?</svg>", page_of(past), re.S)
    assert len(pictures) == MAX_SHARES + 5
    for picture in pictures:
        root = ET.fromstring(picture)
        width, height = map(int, root.attrib["viewBox"].split()[2:])
        assert root.attrib["aria-label"]
        for path in root.iter("path"):
            for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.attrib["d"]):
                assert 0 <= float(x) <= width
                assert 0 <= float(y) <= height


def test_the_tables_have_every_tenant_and_every_reason(past: Past) -> None:
    checked = Checked()
    checked.feed(page_of(past))
    tenants, holds = checked.tables
    assert {row[0] for row in tenants[1:]} == {*story.WEIGHTS, *(f"small-{n}" for n in range(30))}
    assert all(len(row) == len(tenants[0]) for row in tenants)
    totals = {total.name: total for total in past.totals}
    trainer = next(row for row in tenants if row[0] == "trainer")
    assert trainer[6] == str(totals["trainer"].holds)
    assert trainer[9] == "n/a", "it has no token counter, which is not 0"
    assert {row[0] for row in holds[1:]} == {"over entitlement", "deep queue", "over quota"}
    assert sum(int(row[1]) for row in holds[1:]) == sum(total.holds for total in past.totals)


def test_what_a_dry_run_would_have_held_has_columns_a_plot_and_a_table_of_its_own(past: Past) -> None:
    tables = []
    dry = replace(
        past,
        dry_holds={"over_quota": [(END - 60, 5.0), (END, 6.0)]},
        totals=tuple(
            replace(one, dry_holds=11, dry_held_s=4.5) if one.name == "trainer" else one
            for one in past.totals
        ),
    )
    for one in (past, dry):
        checked = Checked()
        checked.feed(page_of(one))
        tables.append(checked.tables)
    (tenants, holds), (dry_tenants, same_holds, dry_holds) = tables
    assert [row[:10] for row in dry_tenants] == tenants, "in none of the numbers of what was held"
    assert dry_tenants[0][10:] == ["dry-run holds", "dry-run held s"]
    assert next(row for row in dry_tenants if row[0] == "trainer")[10:] == ["11", "4.5"]
    assert same_holds == holds
    assert dry_holds[1:] == [["over quota", "11"]]
    assert "<b>11</b><span>holds of a dry run, 4.5 s in all</span>" in page_of(dry)
    assert "Holds of a dry run by reason" in page_of(dry)
    assert "dry" not in page_of(past)


def test_what_is_missing_is_said(past: Past) -> None:
    text = page_of(past)
    assert re.search(r"nobody looked for (9|10) min", text)
    assert f"The {34 - MAX_SHARES} that used least are only in the table" in text
    assert f"grey: {34 - COLOURS} more" in text
    bare = Past(
        0, 10, 1, 10, False, ("observe",), totals=(TenantTotal("x", 1, *[None] * 3, None, 0, None, None),)
    )
    text = page_of(bare)
    assert "some holds may be missing" in text
    assert "Nobody was held" in text
    assert "<td>n/a</td>" in text
    assert "Tokens per second" not in text, "a plot of nothing is no plot"


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_colour_is_readable_in_its_light() -> None:
    assert len(LIGHT) == len(DARK) == COLOURS
    for palette, background in ((LIGHT, LIGHT_BACKGROUND), (DARK, DARK_BACKGROUND)):
        assert min(contrast(colour, background) for colour in palette) >= 4.5


def test_a_line_is_broken_where_nothing_is_known() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 3.0), (9.0, 4.0), (10.0, 5.0)]
    assert runs(points, 2.5) == [[(0.0, 1.0), (1.0, 2.0)], [(3.0, 3.0)], [(9.0, 4.0), (10.0, 5.0)]]
    chart = Chart("k", "t", "u", (Line("a<b", points, 0),))
    picture = draw(chart, 0, 10, 1, 2.5, LARGE)
    path = re.search(r'<path class="line c0" d="([^"]*)"><title>a&lt;b</title>', picture)
    assert path is not None
    assert path.group(1).count("M") == 3


def test_minutes_do_not_hide_milliseconds() -> None:
    points = [(0.0, 0.0), (2.0, 2.0), (5.0, 20.0), (10.0, 70_000.0)]
    chart = Chart("k", "t", "ms", (Line("a", points, 0),), is_log=True)
    picture = draw(chart, 0, 10, 1, 9, LARGE)
    assert re.findall(r'class="v"[^>]*>([^<]*)<', picture) == ["1", "10", "100", "1000", "10k", "100k"]
    path = re.search(r'class="line c0" d="([^"]*)"', picture)
    assert path is not None
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path.group(1))]
    assert heights[0] == HEIGHT, "nothing lies on the axis, not below it"
    assert HEIGHT - heights[1] > 10, "2 ms can be told from nothing"
    tiny = replace(chart, lines=(Line("a", [*points, (11.0, 1e-6)], 0),))
    assert draw(tiny, 0, 10, 1, 9, LARGE).count('class="v"') == 6, (
        "a millionth of a millisecond does not flatten the rest"
    )
    empty = draw(Chart("k", "t", "ms", (Line("a", [(0.0, 0.0)], 0),), is_log=True), 0, 10, 1, 9, LARGE)
    assert "nan" not in empty


def test_bars_are_stacked() -> None:
    bars = (Line("low", [(5.0, 2.0)], 0), Line("high", [(5.0, 1.0)], 1))
    picture = draw(Chart("k", "t", "u", bars=bars), 0, 10, 1, 2.5, LARGE)
    low, high = re.findall(r'class="bar c\d" d="M[\d.]+ ([\d.]+)V([\d.]+)', picture)
    assert high[0] == low[1], "the second begins where the first ends"


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 63, 4, [0, 20, 40, 60, 80]),
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-240, 65, 5, [-300, -200, -100, 0, 100]),
        (0, 0.003, 3, [0, 0.001, 0.002, 0.003]),
        (5, 5.0000001, 3, None),
    ],
)
def test_ticks_are_round_and_hold_everything(
    low: float, high: float, count: int, expected: list[float] | None
) -> None:
    found = ticks(low, high, count)
    if expected is not None:
        assert found == expected
    assert found[0] <= low <= high <= found[-1] + 1e-6
    assert 2 <= len(found) <= count + 3


def test_times_are_round_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for span_s in (30, 600, 3600, 86400, 7 * 86400, 60 * 86400):
        marks = time_ticks(END, END + span_s, 8)
        assert 2 <= len(marks) <= 10
        assert all(END <= t <= END + span_s for t, _ in marks)
    assert [text for _, text in time_ticks(END - END % 3600, END - END % 3600 + 3600, 5)][1].endswith(":15")
    assert [number_text(value) for value in (0, 0.25, 20, 12_000)] == ["0", "0.25", "20", "12k"]
    assert nice_step(0, 3) == 1


# ---- the command ----


def ask(*arguments: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["report", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def test_the_command_writes_a_page_where_it_is_told(tmp_path: Path) -> None:
    import time

    story.write(tmp_path / "h", int(time.time()), hours=0.2)
    result = ask("--history", tmp_path / "h", "--since", "10m", "-o", tmp_path / "r.html")
    assert result.stdout == f"{tmp_path}/r.html\n"
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    (tmp_path / "c.yaml").write_text(f"state_dir: {tmp_path}\n")
    (tmp_path / "h").rename(tmp_path / "history.sqlite")
    ask("-c", tmp_path / "c.yaml", "--output", tmp_path / "r2.html")
    assert (tmp_path / "r2.html").exists()


def test_a_picture_is_drawn_with_matplotlib_and_without_it_there_is_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'fairsched[bench]'")
    story.write(tmp_path / "h", END, hours=0.1)
    board = make_board(read_past(tmp_path / "h", END - 600, END))
    png.save(board, tmp_path / "r.png", node="node")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    words = {text.get_text() for axes in png.draw(board, node="node").axes for text in axes.texts}
    assert {word for tile in tiles(board.past) for word in tile} <= words, "the figures above the plots"
    monkeypatch.setattr(png.importlib.util, "find_spec", lambda name: None)
    result = ask("--history", tmp_path / "none", "-o", tmp_path / "x.png", status=1)
    remedy = getattr(result.exception, "remedy", None) or ""
    assert "FILE.html" in remedy
    assert f"{sys.executable} -m pip install matplotlib" in remedy, "the service has a Python of its own"


def test_mistakes_are_told_before_anything_is_read(tmp_path: Path, history: Path) -> None:
    assert "ends neither in .html nor in .png" in ask("-o", "r.pdf", status=2).stderr
    assert "write 90s, 15m, 1h, 7d" in ask("--since", "soon", status=2).stderr
    assert "write 90s" in ask("--since", "0h", status=2).stderr
    result = ask("--history", history, "--since", "9999w", "-o", tmp_path / "no" / "r.html", status=1)
    assert "No such file" in str(result.exception)
