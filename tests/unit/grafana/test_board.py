# SPDX-License-Identifier: Apache-2.0
"""The board is what its generator writes, fits Grafana's grid, and asks for metrics that exist.

That every expression returns data is asked of a real Prometheus in tests/node/prometheus.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from itertools import combinations

import pytest

from tests.unit.grafana.board import BOARD, GENERATOR, board, panels, queries, with_variables
from tests.unit.prometheus.catalogue import samples
from tests.unit.prometheus.shipped import metrics_of
from tests.unit.repo.tree import ROOT

COLUMNS = 24
KINDS = {"row", "stat", "timeseries"}
UNITS = {"short", "s", "bytes", "percentunit", "celsius", "ops", "cps", "watt", "Bps"}
"""Of those that Grafana knows; one that it does not is shown as text."""
VARIABLES = ["datasource", "node", "gpu", "tenant"]


@pytest.mark.skipif(
    importlib.util.find_spec("grafana_foundation_sdk") is None,
    reason="the generator's library is not there: sudo make setup, with Python 3.11 or later",
)
def test_the_board_is_what_its_generator_writes() -> None:
    out = subprocess.run(
        [sys.executable, str(GENERATOR)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout == BOARD.read_text(encoding="utf-8"), (
        f"python {GENERATOR.relative_to(ROOT)} > {BOARD.name}"
    )


def test_panels_lie_on_the_grid_and_not_on_each_other() -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in panels()]
    for title, at in places:
        assert at["w"] > 0, title
        assert at["h"] > 0, title
        assert at["x"] + at["w"] <= COLUMNS, title
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, f"{one} lies on {other}"


def test_every_panel_says_what_it_shows_in_a_unit_that_grafana_knows() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["type"] in KINDS, panel["title"]
        if panel["type"] == "row":
            continue
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "$datasource"}, panel["title"]
        assert panel["targets"], panel["title"]
        names = [target["refId"] for target in panel["targets"]]
        assert len(names) == len(set(names)), panel["title"]


def test_the_board_can_be_narrowed_to_a_node_a_gpu_and_a_tenant() -> None:
    assert [one["name"] for one in board()["templating"]["list"]] == VARIABLES
    used = {name for _, expression in queries() for name in re.findall(r"\$(\w+)", expression)}
    assert used == {"node", "gpu", "tenant", "__rate_interval"}
    assert [expression for _, expression in queries() if "$node" not in expression] == []
    left = [expression for _, expression in queries() if "$" in with_variables(expression)]
    assert left == []


def test_every_metric_of_the_board_is_one_that_the_exporter_has() -> None:
    wanted = {(title, name) for title, expression in queries() for name in metrics_of(expression)}
    assert wanted
    assert {(title, name) for title, name in wanted if name not in samples()} == set()


def test_the_variables_ask_for_metrics_that_the_exporter_has() -> None:
    for one in board()["templating"]["list"][1:]:
        query = one["query"] if isinstance(one["query"], str) else one["query"]["query"]
        names = metrics_of(query)
        assert names
        assert names <= samples(), one["name"]


def test_it_has_the_parts_an_operator_looks_for() -> None:
    rows = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert rows == ["Service levels", "Tenants", "Holds", "GPUs", "What fairsched costs"]
