# SPDX-License-Identifier: Apache-2.0
"""Pictures: what they hold, by the objects they are made of, and that they are whole files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fair.results import ResultError
from tests.unit.benchmarks.made_results import NAMES, document, series

pytest.importorskip("matplotlib", reason="matplotlib is not installed: sudo make setup")

from benchmarks.fair import overview_plot, plots

PNG = b"\x89PNG\r\n\x1a\n"
DUE = dict.fromkeys(NAMES, 0.25)
RATES = {"chat": 10.0, "code": 11.0, "mail": 12.0, "trainer": 13.0}


def runs(
    policies: Sequence[str] = ("none", "fairsched"), count: int = 0, **leaf: float
) -> list[dict[str, Any]]:
    """Four tenants, or ``count``; the last one has the figures of ``leaf``."""
    names = [f"tenant-{i:02}" for i in range(count)] or list(NAMES)
    due = dict.fromkeys(names, 1 / len(names))
    rates = {name: RATES.get(name, 5.0) for name in names}
    leaves = {name: (leaf if name == names[-1] else {}) for name in names}
    return [
        document("weights-4211", policy, leaves=leaves, series=series(due, due, 0.02, rates, seed))
        for seed, policy in enumerate(policies, 1)
    ]


def texts(figure: Any) -> str:
    return "\n".join(
        [text.get_text() for text in figure.texts]
        + [text.get_text() for axes in figure.axes for text in axes.texts]
        + [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    )


def lines_of(axes: Any, colour: str) -> list[Any]:
    return [line for line in axes.get_lines() if line.get_color() == colour and len(line.get_xdata()) > 2]


def test_a_page_is_a_whole_file_that_can_be_read_at_1600_pixels(tmp_path: Path) -> None:
    path = tmp_path / "weights-4211" / "page.png"
    plots.draw_scenario(runs(), path)
    head = path.read_bytes()[:24]
    assert head.startswith(PNG)
    assert 1500 <= int.from_bytes(head[16:20], "big") <= 1700
    assert [file.name for file in path.parent.iterdir()] == ["page.png"]


def test_a_page_has_a_row_per_policy_and_says_what_it_is_of() -> None:
    figure = plots.page(runs(("token", "fairsched", "none")))
    assert len(figure.axes) == 12
    names = ("none", "fairsched", "token")
    beside = [[text.get_text() for text in axes.texts] for axes in figure.axes[::4]]
    assert [[name for name in names if name in row] for row in beside] == [["none"], ["fairsched"], ["token"]]
    said = texts(figure)
    for wanted in ("weights-4211", "seed 1", "A processor", "Linux 6.18.0", "share error 0.4 points", *NAMES):
        assert wanted in said
    labels = {axes.get_xlabel() for axes in figure.axes}
    assert labels == {"", "seconds", "latency of a step, ms; dot: 99 %"}


def test_lines_are_the_measured_values() -> None:
    (run,) = runs(("fairsched",))
    shares, rates, latencies, jain = plots.page([run]).axes
    for name, colour in zip(NAMES, plots.COLOURS, strict=False):
        (rate,) = lines_of(rates, colour)
        assert list(rate.get_ydata()) == run["series"]["tokens_per_s"][name]
        (latency,) = lines_of(latencies, colour)
        assert list(latency.get_xdata()) == run["series"]["latency_cdf_ms"][name]
        assert list(latency.get_ydata())[::100] == [0.0, 100.0]
    (index,) = lines_of(jain, plots.INK)
    assert list(index.get_ydata()) == run["series"]["jain_1s"]
    borders = [next(iter(line.get_ydata())) for line in lines_of(shares, plots.INK)]
    assert borders == [25.0, 50.0, 75.0]
    tops = [stack.get_paths()[0].vertices[:, 1].max() for stack in shares.collections]
    assert tops[-1] == pytest.approx(100.0)


def test_policies_are_compared_on_the_same_axes() -> None:
    figure = plots.page(runs())
    above, below = figure.axes[:4], figure.axes[4:]
    for upper, lower in zip(above, below, strict=True):
        assert upper.get_xlim() == lower.get_xlim()
        assert upper.get_ylim() == lower.get_ylim()


def test_what_is_not_known_is_a_gap_and_not_a_zero() -> None:
    (run,) = runs(("fairsched",))
    run["series"]["tokens_per_s"]["chat"][3] = None
    run["series"]["jain_1s"] = [None] * len(run["series"]["at_s"])
    del run["series"]["latency_cdf_ms"]["mail"]
    _, rates, latencies, _ = plots.page([run]).axes
    (chat,) = lines_of(rates, plots.COLOURS[0])
    assert chat.get_ydata()[3] != chat.get_ydata()[3]
    assert lines_of(latencies, plots.COLOURS[NAMES.index("mail")]) == []


@pytest.mark.parametrize("missing", [{}, {"at_s": [], "share": {}, "jain_1s": []}])
def test_a_run_without_series_is_drawn_empty(missing: dict[str, Any], tmp_path: Path) -> None:
    plots.draw_scenario([document(series=missing)], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").read_bytes().startswith(PNG)


def test_a_crowd_is_a_range_and_its_hostile_one_a_line() -> None:
    figure = plots.page(runs(("fairsched",), count=32, gain_points=1.0))
    shares, rates, latencies, _ = figure.axes
    assert len(shares.collections) == len(rates.collections) == 2
    assert len(lines_of(rates, plots.CROWD)) == len(lines_of(rates, plots.HOSTILE)) == 1
    assert len(lines_of(latencies, plots.CROWD)) == 31
    said = texts(figure)
    assert "all of 31 tenants" in said and "tenant-31 (hostile)" in said
    assert "tenant-05" not in said


def test_colours_are_constant_distinct_and_vermilion_is_hostile() -> None:
    for count in (4, 8):
        figure = plots.page(runs(count=count, gain_points=1.0))
        (legend,) = figure.legends
        patches = {
            text.get_text(): patch
            for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=False)
        }
        colours = [patch.get_facecolor() for patch in patches.values()]
        assert len(set(colours)) == len(colours) == count
        (hostile,) = [name for name in patches if name.endswith("(hostile)")]
        from matplotlib.colors import to_rgba

        assert patches[hostile].get_facecolor() == to_rgba(plots.HOSTILE)


def test_the_lowest_seed_that_all_have_is_drawn() -> None:
    seeds = [
        document(policy=p, seed=s) for p, s in (("none", 1), ("none", 2), ("fairsched", 2), ("fairsched", 3))
    ]
    said = texts(plots.page(seeds))
    assert "seed 2" in said and "seed 1" not in said


def test_there_is_no_picture_of_nothing(tmp_path: Path) -> None:
    for draw in (plots.draw_scenario, overview_plot.draw_overview):
        with pytest.raises(ResultError, match="nothing to draw"):
            draw([], tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_is_small_enough_to_be_kept_with_its_results(tmp_path: Path) -> None:
    plots.draw_scenario(runs(), tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size < 150_000


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match=r"file/page\.png") as caught:
        plots.draw_scenario(runs(), tmp_path / "file" / "page.png")
    assert caught.value.remedy


def test_without_matplotlib_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (plots.draw_scenario, overview_plot.draw_overview):
        with pytest.raises(ResultError, match="matplotlib") as caught:
            draw(runs(), tmp_path / "x.png")
        assert "pip install" in caught.value.remedy


# ---- over all scenarios ----


def test_the_overview_has_a_line_per_scenario_and_a_mark_per_policy(tmp_path: Path) -> None:
    measured = [
        document(name, policy, seed, whole={"share_error_max_points": error * seed})
        for name in ("hostile-fork", "caps-10-90")
        for policy, error in (("none", 20.0), ("fairsched", 0.2), ("somebody", 5.0))
        for seed in (1, 2)
    ]
    figure = overview_plot.picture(measured)
    errors = figure.axes[0]
    assert [label.get_text() for label in errors.get_yticklabels()] == ["caps-10-90", "hostile-fork"]
    marks = {
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in errors.get_lines()
        if len(line.get_xdata()) == 1
    }
    assert {(30.0, 0), (7.5, 0)} <= marks and len(marks) == 6
    (limit,) = [line for line in errors.get_lines() if line.get_color() == "black"]
    assert list(limit.get_xdata()) == [1.0, 1.0]
    assert "somebody" in texts(figure)
    overview_plot.draw_overview(measured, tmp_path / "overview.png")
    assert (tmp_path / "overview.png").read_bytes().startswith(PNG)


def test_a_figure_that_was_not_measured_has_no_mark() -> None:
    figure = overview_plot.picture([document(whole={"tokens_cv_across_ratio": None})])
    marks = [[line for line in axes.get_lines() if len(line.get_xdata()) == 1] for axes in figure.axes]
    assert [len(found) for found in marks] == [1, 0, 1]
