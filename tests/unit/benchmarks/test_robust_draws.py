# SPDX-License-Identifier: Apache-2.0
"""What is drawn is a scenario, the same for ever, covers what was promised, and owes nobody what it cannot have."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from benchmarks import robust_draws as draws
from benchmarks import robust_figures
from benchmarks.fair import scenario
from benchmarks.fair.scenario import Gpu, Load, Play, Scenario, Tenant
from benchmarks.machine import ROOT
from benchmarks.robust_draws import Draw, draw

COUNT = 2000
SEED = 4711
"""Of what is looked at here; nothing is measured with it."""


@dataclass(frozen=True)
class Drawn:
    """One, and what the scenario reader makes of it."""

    one: Draw
    play: Play

    @property
    def gpu(self) -> Gpu:
        return self.play.scenario.gpus[0]

    @property
    def leaves(self) -> list[Tenant]:
        return list(self.play.leaves().values())

    @property
    def loads(self) -> list[Load]:
        return [load for leaf in self.leaves for load in leaf.loads]


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    every = [draw(SEED, number) for number in range(1, COUNT + 1)]
    return [Drawn(one, Play(one.name, Scenario.model_validate(one.document))) for one in every]


def ratio(drawn: list[Drawn], of: Callable[[Drawn], bool]) -> float:
    return statistics.fmean(of(one) for one in drawn)


# ---- a function of seed and number ----


def test_a_draw_is_the_same_whenever_and_wherever_it_is_made() -> None:
    names = [(1, 1), (1, 17), (9, 17)]
    program = "import json\nfrom benchmarks.robust_draws import draw\n"
    program += f"print(json.dumps([draw(*name).document for name in {names}]))"
    for hash_seed in "1", "2":
        made = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(made.stdout) == [draw(*name).document for name in names]


def test_every_number_and_every_seed_is_another(drawn: list[Drawn]) -> None:
    assert len({json.dumps(one.one.document) for one in drawn}) == COUNT
    assert draw(1, 2).document["tenants"] != draw(2, 1).document["tenants"]
    assert draw(1, 2).name == "s1-002"


def test_the_length_of_a_play_draws_nothing() -> None:
    short, whole = draw(1, 4, seconds=3, settle_s=2).document, draw(1, 4).document
    assert (short["seconds"], short["settle_s"], whole["seconds"], whole["settle_s"]) == (3, 2, 15, 12)
    assert {**short, "seconds": 15.0, "settle_s": 12.0} == whole


def test_a_draw_is_a_file_that_the_scenario_reader_reads(tmp_path: Path, drawn: list[Drawn]) -> None:
    for one in drawn[:40]:
        path = tmp_path / f"{one.one.name}.yaml"
        path.write_text(yaml.safe_dump(one.one.document, sort_keys=False))
        assert scenario.load(path) == one.play


# ---- what is drawn ----


def test_slices_are_what_the_hardware_has(drawn: list[Drawn]) -> None:
    for one in drawn:
        units = round(one.gpu.slice_us / draws.UNIT_US)
        assert one.gpu.slice_us == pytest.approx(units * draws.UNIT_US)
        assert any(units % (1 << scale) == 0 and units >> scale <= 255 for scale in range(16)), units
        assert 480 <= one.gpu.slice_us <= 30_000
        assert one.gpu.told_slice_us is None, "the daemon is never told"


@pytest.mark.parametrize(
    ("wanted_us", "slice_us"),
    [
        (1024, 1024),
        (2048, 2048),
        (2097.152, 2097.152),
        (10_000, 9961.472),
        (30_000, 29_884.416),
        (4000, 3997.696),
    ],
)
def test_a_slice_is_cut_to_eight_bits_and_a_scale(wanted_us: float, slice_us: float) -> None:
    assert draws.quantised_us(wanted_us) == slice_us


NATURES: dict[str, tuple[Callable[[Drawn], bool], float]] = {
    "1.024 ms": (lambda d: d.gpu.slice_us == 1024, 0.25),
    "2.048 ms": (lambda d: d.gpu.slice_us == 2048, 0.125),
    "2.097 ms": (lambda d: d.gpu.slice_us == 2097.152, 0.125),
    "10 ms": (lambda d: d.gpu.slice_us == 9961.472, 0.125),
    "30 ms": (lambda d: d.gpu.slice_us == 29_884.416, 0.125),
    "jitter": (lambda d: 0 < d.gpu.slice_jitter_ratio <= 0.2, 0.5),
    "unequal": (lambda d: 0 < d.gpu.slice_spread_ratio <= 0.3, 0.4),
    "strongly unequal": (lambda d: d.gpu.slice_spread_ratio > 0.2, 0.16),
    "no preemption": (lambda d: d.gpu.run_to_completion, 0.15),
    "side by side": (lambda d: d.gpu.overlap == 2, 0.1),
    "a stranger": (lambda d: len(d.play.scenario.strangers) == 1, 0.15),
    "short switches": (lambda d: 34 <= d.gpu.switch_us < 82, 0.5),
    "long switches": (lambda d: 82 < d.gpu.switch_us <= 200, 0.5),
}


@pytest.mark.parametrize("name", NATURES)
def test_every_nature_comes_as_often_as_was_said(drawn: list[Drawn], name: str) -> None:
    is_it, expected = NATURES[name]
    assert ratio(drawn, is_it) == pytest.approx(expected, abs=0.035)


def has(of: Callable[[Load], bool]) -> Callable[[Drawn], bool]:
    return lambda one: any(of(load) for load in one.loads)


MIXES: dict[str, tuple[Callable[[Drawn], bool], float, float]] = {
    "nested": (lambda d: any("/" in leaf for leaf in d.play.leaves()), 0.2, 0.4),
    "one by one": (lambda d: any(leaf.start_s > 0 for leaf in d.leaves), 0.45, 0.55),
    "nearly constant kernels": (lambda d: max(load.spread_ratio for load in d.loads) <= 0.02, 0.45, 0.55),
    "a constant kernel": (has(lambda load: load.spread_ratio == 0), 0.4, 0.55),
    "launch-bound": (has(lambda load: load.launch_gap_us > load.kernel_us), 0.1, 0.3),
    "copies": (has(lambda load: load.copy_bytes > 0), 0.12, 0.25),
    "large copies": (has(lambda load: load.copy_bytes > 20_000_000), 0.02, 0.2),
    "several processes": (has(lambda load: load.processes > 1), 0.6, 1),
    "deep queues": (has(lambda load: load.queue_depth >= 5), 0.5, 1),
    "waited for each": (has(lambda load: load.queue_depth == 1), 0.5, 1),
    "graphs": (has(lambda load: load.submit == "graph"), 0.5, 0.9),
    "query": (has(lambda load: load.wait == "query"), 0.4, 0.8),
    "poisson": (has(lambda load: load.arrival.pattern == "poisson"), 0.25, 0.7),
    "onoff": (has(lambda load: load.arrival.pattern == "onoff"), 0.25, 0.7),
    "pauses": (has(lambda load: load.cpu_us > 5000), 0.25, 0.7),
    "short steps": (has(lambda load: load.kernels * load.kernel_us < 3000), 0.3, 1),
    "long steps": (has(lambda load: load.kernels * load.kernel_us > 40_000), 0.3, 1),
    "batch": (lambda d: any(leaf.tenant_class == "batch" for leaf in d.leaves), 0.5, 1),
}


@pytest.mark.parametrize("name", MIXES)
def test_every_kind_of_mix_comes_often_enough(drawn: list[Drawn], name: str) -> None:
    is_it, least, most = MIXES[name]
    assert least <= ratio(drawn, is_it) <= most


def test_all_numbers_of_tenants_and_all_weights_come(drawn: list[Drawn]) -> None:
    assert {len(one.leaves) for one in drawn} == set(range(2, 9))
    assert {leaf.weight for one in drawn for leaf in one.leaves} == set(range(1, 10))
    assert {load.processes for one in drawn for load in one.loads} == {1, 2, 3, 4}
    assert {load.queue_depth for one in drawn for load in one.loads} == set(range(1, 9))


def every_load(drawn: list[Drawn]) -> Iterator[Load]:
    return (load for one in drawn for load in (*one.loads, *one.play.scenario.strangers))


def test_steps_and_kernels_are_those_of_real_services(drawn: list[Drawn]) -> None:
    for load in every_load(drawn):
        step_us = load.kernels * load.kernel_us
        assert 20 <= load.kernel_us <= 5000
        assert 1000 <= step_us <= 120_000
        assert load.kernels <= draws.MOST_LAUNCHES
        assert load.copy_bytes <= 60_000_000
        assert load.spread_ratio <= 0.3
        assert load.processes * load.queue_depth * step_us <= draws.MOST_QUEUED_US


def test_tenants_that_come_late_come_before_anything_is_measured(drawn: list[Drawn]) -> None:
    for one in drawn:
        starts = sorted(leaf.start_s for leaf in one.leaves)
        assert starts[0] == 0
        assert starts[-1] <= draws.SETTLE_S - 3


# ---- what is owed can be had ----


def test_the_gpu_never_idles_for_want_of_work(drawn: list[Drawn]) -> None:
    for one in drawn:
        assert draws.steady_capacity(one.play) >= draws.STEADY_CAPACITY
        assert sum(draws.is_steady(leaf) for leaf in one.leaves) >= 2


def test_nobody_is_owed_more_than_it_can_use(drawn: list[Drawn]) -> None:
    for one in drawn:
        leaves = one.play.leaves()
        for leaf, owed in draws.owed_at_most(one.play).items():
            assert not draws.is_too_much(leaves[leaf], owed), (one.one.name, leaf, owed)


def tenant(**load: object) -> Tenant:
    return Tenant(loads=(Load.model_validate({"kernels": 10, "kernel_us": 1000.0, **load}),))


@pytest.mark.parametrize(
    ("load", "capacity"),
    [
        ({}, 10_000 / 10_150),
        ({"queue_depth": 2}, 1.0),
        ({"launch_gap_us": 1940.0}, 10_000 / (9 * 2000 + 1000 + 150)),
        ({"launch_gap_us": 1940.0, "queue_depth": 2}, 10_000 / 18_000),
        ({"launch_gap_us": 1940.0, "processes": 2}, 1.0),
        ({"copy_bytes": 24_000_000}, 10_000 / 12_150),
        ({"cpu_us": 2850.0}, 10_000 / 13_000),
        ({"cpu_us": 30_000.0}, 10_000 / 10_150),
        ({"cpu_us": 30_000.0, "queue_depth": 4}, 10_000 / 30_000),
    ],
)
def test_what_a_leaf_can_use_while_it_wants(load: dict[str, object], capacity: float) -> None:
    assert draws.capacity_ratio(tenant(**load)) == pytest.approx(capacity)


def test_who_pauses_does_not_want_the_gpu_all_the_time() -> None:
    assert draws.is_steady(tenant(cpu_us=4000.0))
    assert not draws.is_steady(tenant(cpu_us=6000.0))
    assert draws.is_steady(tenant(cpu_us=6000.0, queue_depth=2)), "by its log one is in flight at any moment"
    assert not draws.is_steady(tenant(arrival={"pattern": "onoff", "on_ms": 5.0, "off_ms": 5.0}))


def test_most_is_owed_when_only_those_who_always_want_are_there() -> None:
    sometimes = {"arrival": {"pattern": "poisson", "rate_per_s": 5.0}}
    tenants = {"a": {"weight": 3.0}, "b": {"weight": 1.0}, "c": {"weight": 4.0, **sometimes}}
    document = {"tenants": {name: {"weight": t.pop("weight"), "loads": [t]} for name, t in tenants.items()}}
    owed = draws.owed_at_most(Play("made", Scenario.model_validate(document)))
    assert owed == pytest.approx({"a": 0.75, "b": 0.25, "c": 0.5})


@pytest.mark.parametrize("word", robust_figures.TRAITS)
def test_what_figures_are_told_apart_by_is_in_the_descriptions(drawn: list[Drawn], word: str) -> None:
    assert 0.05 < ratio(drawn, lambda one: word in one.one.description) < 0.8


def test_a_draw_is_described_in_one_line(drawn: list[Drawn]) -> None:
    for one in drawn:
        assert one.one.description == one.play.scenario.description
        assert "\n" not in one.one.description
        assert len(one.one.description) <= 240
        assert f"{len(one.leaves)} tenants" in one.one.description
