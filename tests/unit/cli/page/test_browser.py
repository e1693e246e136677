# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser, at the width of a desk and of a telephone: what it looks like there, as far as can be
measured, and that the browser has nothing to complain of."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pytest

from fairsched.cli.page.charts import make_board
from fairsched.cli.page.page import make_page
from fairsched.companion.history.read import read_past
from tests.unit.cli.page import story

END = 1_700_000_000
WIDTHS = (1280, 400)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="extra: no browser to look at the page with: apt-get install chromium"
)
FRAME = '<iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe>'
MEASURE = """<script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const box = one => one.getBoundingClientRect(), shown = one => box(one).width > 0;
    const plots = [...page.querySelectorAll(".plot")];
    const times = plots.map(plot => [...plot.querySelectorAll(".t")].filter(shown).map(box));
    const texts = [...page.querySelectorAll("body *")].filter(
      one => shown(one) && [...one.childNodes].some(node => node.nodeType == 3 && node.data.trim()));
    return {
      too_wide: root.scrollWidth - root.clientWidth,
      plots: plots.map(plot => box(plot.querySelector("svg"))).map(at => [at.width, at.height]),
      gaps: times.flatMap(row => row.slice(1).map((at, i) => at.left - row[i].right)),
      time_counts: times.map(row => row.length),
      left: Math.min(...[...page.querySelectorAll(".v")].map(one => box(one).left)),
      right: root.clientWidth - Math.max(...times.flat().map(at => at.right)),
      smallest: Math.min(...texts.map(one => parseFloat(frame.contentWindow.getComputedStyle(one).fontSize))),
      under_heads: [...page.querySelectorAll("section")].slice(1).map(
        one => box(one.querySelector("h2")).top - Math.max(...[...one.previousElementSibling.querySelectorAll(
          "span, svg, td, p")].filter(shown).map(two => box(two).bottom))),
    };
  });
  console.log("measured");
  document.body.innerHTML = "<pre>" + JSON.stringify(found) + "</pre>";
});
</script>"""


@dataclass(frozen=True)
class Seen:
    document: str
    """As it is once all is done."""
    said: list[str]
    """On the browser's console."""


def look(page: str, directory: Path) -> Seen:
    assert BROWSER is not None
    file = directory / "page.html"
    file.write_text(page, encoding="utf-8")
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--dump-dom",
    ]
    command += [f"--user-data-dir={directory}/browser", file.as_uri()]
    env = {**os.environ, "HOME": str(directory)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return Seen(done.stdout, re.findall(r":CONSOLE[^\]]*\] (.*)", done.stderr))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("history") / "h"
    story.write(path, END, hours=1.0, more_tenants=30)
    return make_page(make_board(read_past(path, END - 3600, END)), node="node", version="0.1.0", now_s=END)


def test_it_has_one_size_of_letters_at_the_desk_and_on_a_telephone(page: str, tmp_path: Path) -> None:
    frames = "".join(FRAME.format(width=width, page=escape(page)) for width in WIDTHS)
    seen = look(f"<!doctype html><meta charset=utf-8><body>{frames}{MEASURE}", tmp_path)
    assert [line.split(",")[0] for line in seen.said] == ['"measured"']
    found: list[dict[str, Any]] = json.loads(re.findall("<pre>(.*)</pre>", seen.document)[0])
    for width, one in zip(WIDTHS, found, strict=True):
        assert one["too_wide"] <= 0, f"{width}: the page itself is scrolled sideways"
        assert all(wide > 120 and high > 100 for wide, high in one["plots"]), f"{width}: a plot to look at"
        assert one["smallest"] >= 12, f"{width}: letters to read"
        assert min(one["gaps"]) >= 3, f"{width}: times do not run into each other"
        assert min(one["time_counts"]) >= 2, f"{width}: one time is no axis"
        assert one["left"] >= 0 <= one["right"], f"{width}: nothing is cut off"
        assert min(one["under_heads"]) >= 20, f"{width}: a heading is apart from what is above it"


@pytest.mark.parametrize("span_s", [100, 80])
def test_a_short_time_has_seconds_that_do_not_run_into_each_other(tmp_path: Path, span_s: int) -> None:
    """100 s have four times below a small plot, 80 s have nine below a large one."""
    story.write(tmp_path / "h", END, hours=0.1)
    board = make_board(read_past(tmp_path / "h", END - span_s, END))
    short = make_page(board, node="node", version="0.1.0", now_s=END)
    frames = "".join(FRAME.format(width=width, page=escape(short)) for width in WIDTHS)
    seen = look(f"<!doctype html><meta charset=utf-8><body>{frames}{MEASURE}", tmp_path)
    found: list[dict[str, Any]] = json.loads(re.findall("<pre>(.*)</pre>", seen.document)[0])
    assert min(min(one["gaps"]) for one in found) >= 3


def test_the_browser_has_nothing_to_complain_of(page: str, tmp_path: Path) -> None:
    seen = look(page, tmp_path)
    assert seen.said == []
    assert seen.document.count("<section>") == page.count("<section>") > 5
    broken = page.replace("<body>", '<body><img src="data:image/png;base64,AA"><script>nobody()</script>')
    assert any("nobody is not defined" in line for line in look(broken, tmp_path).said), "it would be heard"
