# SPDX-License-Identifier: Apache-2.0
"""Scenario files: what they say reaches the GPU and the processes, and mistakes are named."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

from benchmarks.fair import scenario
from benchmarks.fair.bars import BARS
from fairsched.errors import ConfigError
from fairsched.model import TenantClass


def write(tmp_path: Path, text: str, name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_every_shipped_file_is_a_scenario_and_says_what_it_shows() -> None:
    files = scenario.shipped()
    assert len(files) >= 40
    for file in files:
        play = scenario.load(file)
        assert play.name == file.stem
        assert 10 <= len(play.scenario.description) <= 120, file.name


def test_a_load_becomes_a_workload_with_nothing_lost(tmp_path: Path) -> None:
    play = scenario.load(
        write(
            tmp_path,
            """
gpus: [{slice_us: 500, run_to_completion: true}, {overlap: 3}]
tenants:
  chat:
    weight: 3
    class: batch
    loads:
      - {processes: 2, kernels: 7, kernel_us: 90, spread_ratio: 0.2, distribution: uniform, cpu_us: 40,
         launch_gap_us: 15,
         queue_depth: 5, wait: query,
         arrival: {pattern: onoff, on_ms: 10, off_ms: 30}, copy_bytes: 4096, gpu: 1, streams: 2, contexts: 3}
""",
        )
    )
    first, second = (gpu.spec() for gpu in play.scenario.gpus)
    assert (first.slice_us, first.run_to_completion, second.overlap) == (500, True, 3)
    load = play.leaves()["chat"].loads[0]
    work = load.workload("libcuda.so.1", seed=9)
    assert (work.kind, work.kernels, work.kernel_us, work.jitter_ratio, work.jitter_kind) == (
        "step",
        7,
        90,
        0.2,
        "uniform",
    )
    assert (work.gap_us, work.launch_gap_us) == (40, 15)
    assert (work.depth, work.wait, work.arrival) == (5, "query", "onoff")
    assert (work.on_us, work.off_us, work.copy_bytes, work.device) == (10_000, 30_000, 4096, 1)
    assert (work.streams, work.contexts, work.seed, work.processes) == (2, 3, 9, 1)
    spec = play.specs()["chat"]
    assert (spec.weight, spec.tenant_class) == (3, TenantClass.BATCH)


def test_nested_tenants_are_leaves_by_path_and_promised_by_node(tmp_path: Path) -> None:
    play = scenario.load(
        write(
            tmp_path,
            "tenants:\n  team:\n    weight: 2\n    quota: 0.5\n"
            "    children:\n      a: {loads: [{}]}\n      b: {loads: [{}]}\n",
        )
    )
    assert list(play.leaves()) == ["team/a", "team/b"]
    assert play.specs()["team"].quota_ratio == 0.5
    assert set(play.specs()) == {"team", "team/a", "team/b"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants: {a: {loads: [{kernals: 3}]}}", ["tenants.a.loads.0.kernals", "Extra inputs"]),
        ("tenants: {a: {weight: -1, loads: [{}]}}", ["tenants.a.weight"]),
        ("tenants: {a: {}}", ["tenants.a", "either loads or children"]),
        ("tenants: {a: {loads: [{}], children: {b: {loads: [{}]}}}}", ["either loads or children"]),
        ("tenants: {a: {loads: [{gpu: 1}]}}", ["GPU 1"]),
        ("tenants: {a: {loads: [{arrival: {pattern: poisson}}]}}", ["rate_per_s"]),
        ("tenants: {a: {loads: [{arrival: {pattern: onoff, on_ms: 5}}]}}", ["off_ms"]),
        ("tenants: {a: {start_s: 3, stop_s: 2, loads: [{}]}}", ["stop_s"]),
        ("tenants: {a: {loads: [{submit: graph, streams: 2}]}}", ["streams must be 1"]),
        ("tenants: {a: {loads: [{submit: graph, launch_gap_us: 2}]}}", ["launch_gap_us must be 0"]),
        ("tenants: {a: {loads: [{launch_gap_us: -1}]}}", ["loads.0.launch_gap_us"]),
        ("tenants: {A B: {loads: [{}]}}", ["tenants.A B"]),
        ("tenants: {a: {loads: [{trick: fly}]}}", ["no trick 'fly'", "sigcont"]),
        ("tenants: {a: {loads: [{arrival: {rate_per_s: 5}}]}}", ["arrival", "give the pattern"]),
        ("tenants: {a: {loads: [{arrival: {pattern: poisson, rate_per_s: 5, on_ms: 3}}]}}", ["on_ms"]),
        ("tenants: {a: {loads: [{}]}, a: {loads: [{}]}}", ["the key a is there twice", "line 1"]),
        ("seconds: 3\nseconds: 4\ntenants: {a: {loads: [{}]}}", ["seconds is there twice", "line 2"]),
        ("tenants: {a: &a {loads: [{}]}, b: {<<: *a, weight: 2, weight: 3}}", ["weight is there twice"]),
        ("[1]: 3", ["not YAML"]),
        ("[1, 2]", ["tenants"]),
        ("tenants: {", ["not YAML"]),
    ],
)
def test_a_mistake_is_an_error_that_names_file_key_and_remedy(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario.load(write(tmp_path, text))
    message = str(caught.value)
    for word in ["mine.yaml", *words]:
        assert word in message
    assert caught.value.remedy


def test_a_file_that_is_not_there_is_answered_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario.load(tmp_path / "none-such.yaml")
    assert "seed-4" in (caught.value.remedy or "")


def test_a_shipped_name_will_do() -> None:
    assert scenario.load(Path("seed-4")).name == "seed-4"


@pytest.mark.parametrize(
    ("more", "policy", "settle_s"),
    [("", "none", 1.5), ("", "fairsched", 12.0), ("", "token", 12.0), ("start_s: 1, ", "none", 12.0)],
)
def test_nobody_waits_for_a_policy_that_is_not_there(
    tmp_path: Path, more: str, policy: str, settle_s: float
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"settle_s: 12\ntenants: {{a: {{{more}loads: [{{}}]}}}}\n")
    assert scenario.load(file).settle_s(policy) == settle_s


# ---- what is shipped asks something of a scheduler ----

LEAST_TO_WIN = 0.1
"""Of the GPU. Twice as much and more where the scenario can have it."""
WORKERS = {"child_cgroups": 3, "short_lived": 3}
"""Tricks that have more than one at a time."""
HOSTILE = [path.stem for path in scenario.shipped() if path.stem.startswith("hostile-")]


def contexts(tenant: scenario.Tenant) -> int:
    return sum(one.processes * one.contexts * WORKERS.get(one.trick or "", 1) for one in tenant.loads)


@pytest.mark.parametrize("name", HOSTILE)
def test_where_nobody_schedules_a_trick_pays(name: str) -> None:
    """Or a scheduler that does nothing would look as good as ours."""
    leaves = scenario.load(Path(name)).leaves()
    (hostile,) = [tenant for tenant in leaves.values() if tenant.is_hostile]
    turns = contexts(hostile) / sum(map(contexts, leaves.values()))
    due = hostile.weight / sum(tenant.weight for tenant in leaves.values())
    assert turns - due >= LEAST_TO_WIN


def test_whatever_may_be_promised_to_a_tenant_is_in_a_scenario_that_has_a_bar() -> None:
    judged = {
        path.stem: [node for _, node in scenario.nodes(scenario.load(path).scenario.tenants)]
        for path in scenario.shipped()
        if any(fnmatch.fnmatch(path.stem, bar.scenarios) for bar in BARS)
    }
    nodes = [node for found in judged.values() for node in found]
    assert any(node.min for node in nodes)
    assert any(node.quota is not None for node in nodes)
    assert any(node.weight != 1 for node in nodes)
    assert {node.tenant_class for node in nodes} == {"latency", "batch"}
    pauses = [n for n in judged["caps-on-off"] if any(load.arrival.off_ms >= 1000 for load in n.loads)]
    assert len(pauses) == 1 and pauses[0].quota, "a cap is kept while the other pauses"
