# SPDX-License-Identifier: Apache-2.0
"""Whose steps the headline is about is said by the scenario file, and not by what a policy made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fair import honest
from benchmarks.fair.scenario import Tenant, leaves, load, shipped
from benchmarks.stats import Spread
from tests.unit.benchmarks.made_results import document


def tenant(*loads: dict[str, object], **keys: object) -> Tenant:
    return Tenant.model_validate({"loads": loads or ({},), **keys})


@pytest.mark.parametrize(
    ("given", "is_honest"),
    [
        (tenant(), True),
        (tenant({"kernels": 1000, "streams": 8}), True),
        (tenant({"arrival": {"pattern": "poisson", "rate_per_s": 9.0}}), True),
        (tenant({"processes": 2}), False),
        (tenant({"contexts": 2}), False),
        (tenant({"queue_depth": 2}), False),
        (tenant({}, {}), False),
        (tenant(is_hostile=True), False),
    ],
    ids=["one step", "a long one", "requests", "processes", "contexts", "queue", "two loads", "hostile"],
)
def test_an_honest_tenant_has_one_step_in_flight_and_no_tricks(given: Tenant, is_honest: bool) -> None:
    assert honest.is_honest(given) is is_honest


def test_in_the_headline_scenarios_only_the_greedy_one_is_not_honest() -> None:
    assert honest.leaves_of("seed-4") == {"a", "b", "c"}
    assert honest.leaves_of("weights-4211") == {"gold", "silver", "bronze"}
    assert honest.leaves_of("somebody-s-own") == frozenset()


def test_no_hostile_tenant_of_a_shipped_scenario_is_honest() -> None:
    for path in shipped():
        hostile = {leaf for leaf, one in leaves(load(path).scenario.tenants) if one.is_hostile}
        assert not hostile & honest.leaves_of(path.stem)


def test_the_worst_is_the_honest_leaf_with_the_largest_mean() -> None:
    def of(mean: float) -> Spread:
        return Spread(mean, mean, mean, None, 1)

    found = honest.worst("seed-4", {"a": of(120.0), "b": None, "c": of(125.0), "d": of(9000.0)})
    assert found == of(125.0)
    assert honest.worst("seed-4", {"d": of(9000.0)}) is None
    assert honest.worst("somebody-s-own", {"a": of(120.0)}) is None


def test_it_is_taken_over_the_seeds_before_leaves_are_compared() -> None:
    runs = [
        document(seed=seed, leaves={"a": {"step_p99_ms": a}, "b": {"step_p99_ms": b}})
        for seed, a, b in ((1, 100.0, 140.0), (2, 150.0, 120.0))
    ]
    found = honest.step_p99(runs)
    assert found is not None and (found.mean, found.max) == (130.0, 140.0)
    assert honest.step_p99([]) is None


def test_a_scenario_file_elsewhere_is_read_where_it_is_named(tmp_path: Path) -> None:
    text = "tenants: {quiet: {loads: [{}]}, loud: {loads: [{processes: 3}]}}\n"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    assert honest.leaves_of("mine", tmp_path) == {"quiet"}
