# SPDX-License-Identifier: Apache-2.0
"""A daemon that is told by the GPU whose turn it is (mechanisms.trace), and one to which that is told no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

WEIGHTS = {"a": 4, "b": 2, "c": 1, "d": 1}
SETTLE_S, SHARES_S = 6.0, 15.0
BUSY_RATIO = 0.93
"""Of what it is where nobody is held, on this machine just then: .94 to .97; .80 if no drain is taken to be over."""
AGAIN_S = 60.0
"""After that a daemon asks again for a trace that was refused (observe/traces.py)."""
FOLLOWED, LOST, REFUSED = "trace=followed", "trace=lost", "trace=refused"


def start(site: Site) -> None:
    """With the trace required, and beside everything that an operator has by default."""
    site.daemon.extra_env = site.host.trace_env()
    tenants = {name: {"weight": weight, "class": "batch"} for name, weight in WEIGHTS.items()}
    gpu = {"device_dir": str(site.host.device_dir)}
    site.configure(tenants, gpu=gpu, mechanisms={"trace": "required", "driver": "off"})
    site.start()
    wait_until(lambda: logged(site.log(), FOLLOWED), PATIENCE_S, "the trace is followed")


def parts(amounts: Mapping[str, float]) -> dict[str, float]:
    """Of what all got together."""
    return {name: amount / sum(amounts.values()) for name, amount in amounts.items()}


def watch(site: Site) -> tuple[dict[str, float], dict[str, float]]:
    """The parts that tenants had during SHARES_S: as the engine knows it, and as the daemon accounts it."""
    before, told = site.truth_ns(), {name: site.gpu_time_s(name) for name in WEIGHTS}
    let_run(SHARES_S)
    after, later = site.truth_ns(), {name: site.gpu_time_s(name) for name in WEIGHTS}
    real = parts({name: after[name] - before[name] for name in WEIGHTS})
    said = parts({name: later[name] - told[name] for name in WEIGHTS})
    print(real, said)  # shown when a test fails
    return real, said


def furthest_off(real: Mapping[str, float]) -> float:
    """From what is due, in parts of the GPU."""
    return max(abs(real[name] - weight / 8) for name, weight in WEIGHTS.items())


def test_shares_are_kept_within_a_point_and_the_account_is_what_the_engine_says(site: Site) -> None:
    """Of those who have several steps in flight, of one who launches as fast as the GPU works, of kernels short and
    long: what a replay of turns has most trouble with."""
    start(site)
    loads = [
        STEADY,
        replace(STEADY, kernel_us=3000, kernels=4),
        Workload("trainer", kernels=40, kernel_us=100, jitter_ratio=0.3, depth=6),
        replace(STEADY, depth=8),
    ]
    for name, load in zip(WEIGHTS, loads, strict=True):
        site.spawn(name, load)
    let_run(SETTLE_S)
    real, said = watch(site)
    assert furthest_off(real) < 0.01
    assert all(abs(said[name] - real[name]) < 0.01 for name in WEIGHTS)
    assert logged(site.log(), f"{LOST}|{REFUSED}|tick failed|exception=") == []


def test_a_gpu_is_not_left_idle_for_who_has_no_work_any_more(site: Site) -> None:
    """One comes and goes, another always wants the GPU and is held meanwhile. When the first is done, so is what the
    held one had queued, and only the trace knows it."""
    start(site)
    site.spawn("d", Workload("decode", kernels=20, kernel_us=100, gap_us=100))
    site.spawn("a", Workload("step", kernels=10, kernel_us=4000, arrival="poisson", rate_per_s=6))
    let_run(SETTLE_S)

    def busy() -> float:
        before_ns = sum(site.truth_ns().values())
        let_run(SHARES_S)
        return (sum(site.truth_ns().values()) - before_ns) / (SHARES_S * 1e9)

    held = busy()
    site.stop()
    free = busy()
    print(held, free)
    assert held > BUSY_RATIO * free


@pytest.mark.rest
def test_without_the_trace_the_replay_goes_on_until_it_comes_back(site: Site) -> None:
    start(site)
    for name in WEIGHTS:
        site.spawn(name, STEADY)
    let_run(SETTLE_S)
    node = site.host.device_dir / "nvidiactl"
    away = node.with_suffix(".away")
    node.rename(away)
    wait_until(lambda: logged(site.log(), LOST), PATIENCE_S, "it is lost")
    let_run(SETTLE_S)
    assert furthest_off(watch(site)[0]) < 0.03
    away.rename(node)
    wait_until(lambda: len(logged(site.log(), FOLLOWED)) == 2, AGAIN_S + PATIENCE_S, "it is followed again")
    let_run(SETTLE_S)
    assert furthest_off(watch(site)[0]) < 0.01
    assert logged(site.log(), "tick failed|exception=") == []


def test_who_requires_a_trace_that_cannot_be_had_does_not_start(make_site: MakeSite) -> None:
    """Without the stand-in of the driver the nodes are plain files."""
    site = make_site()
    gpu = {"device_dir": str(site.host.device_dir)}
    site.configure({"a": {}}, gpu=gpu, mechanisms={"trace": "required", "driver": "off"})
    site.launch()
    wait_until(lambda: not site.daemon.is_running, PATIENCE_S, "it ends")
    assert "the trace of context switches is required and cannot be had" in site.log()
