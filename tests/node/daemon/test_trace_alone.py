# SPDX-License-Identifier: Apache-2.0
"""A daemon without eBPF that is told by the GPU whose turn it is, and one to which that is told no more."""

from __future__ import annotations

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, logged
from tests.node.daemon.test_source_switch import TENANTS, Witness, error_points, load
from tests.node.daemon.test_trace import AGAIN_S, FOLLOWED, LOST
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

WEIGHTS = {"a": 4, "b": 2, "c": 1, "d": 1}
SETTLE_S, SHARES_S = 5.0, 20.0
FAILED = "Traceback|tick failed|exception="


def start(site: Site, tenants: dict[str, dict[str, object]]) -> None:
    site.daemon.extra_env = site.host.trace_env()
    gpu = {"device_dir": str(site.host.device_dir), "source": "auto"}
    site.configure(tenants, gpu=gpu, mechanisms={"ebpf": "off", "trace": "required", "driver": "off"})
    site.start()
    wait_until(lambda: site.status()["source"] == "trace", PATIENCE_S, "the trace is the account")


def test_shares_are_kept_and_the_account_is_what_the_engine_says(site: Site) -> None:
    start(site, {name: {"weight": weight, "class": "batch"} for name, weight in WEIGHTS.items()})
    for name in ("a", "b", "c"):
        site.spawn(name, STEADY)
    site.spawn("d", GREEDY)
    let_run(SETTLE_S)
    before, told = site.truth_ns(), {name: site.gpu_time_s(name) for name in WEIGHTS}
    let_run(SHARES_S)
    after, later = site.truth_ns(), {name: site.gpu_time_s(name) for name in WEIGHTS}
    used = {name: (after[name] - before[name]) / 1e9 for name in WEIGHTS}
    said = {name: later[name] - told[name] for name in WEIGHTS}
    print(used, said)  # shown when a test fails
    for name, weight in WEIGHTS.items():
        assert abs(used[name] / sum(used.values()) - weight / 8) < 0.015
        assert abs(said[name] / sum(said.values()) - used[name] / sum(used.values())) < 0.015
    assert logged(site.log(), f"{LOST}|{FAILED}") == []


@pytest.mark.rest
@pytest.mark.xfail(
    strict=True, reason="decision 0031: whether the last one on the engine is done is not seen; busy is .67"
)
def test_nobody_waits_for_one_that_comes_for_a_moment(site: Site) -> None:
    start(site, {"a": {"weight": 1}, "b": {"weight": 1, "class": "batch"}})
    site.spawn("a", Workload("step", kernels=2, kernel_us=500, arrival="poisson", rate_per_s=40))
    site.spawn("b", Workload("trainer", kernels=20, kernel_us=500, depth=4))
    let_run(SETTLE_S)
    before = sum(site.truth_ns().values())
    let_run(SHARES_S / 2)
    busy = (sum(site.truth_ns().values()) - before) / (SHARES_S / 2 * 1e9)
    print(busy)
    assert busy > 0.9


@pytest.mark.rest
def test_a_trace_that_is_lost_under_load_leaves_samples_and_comes_back_without_a_jump(site: Site) -> None:
    start(site, TENANTS)
    load(site)
    witness = Witness(site)
    witness.wait(lambda: witness.holds > 3, PATIENCE_S, "the weights are enforced")
    node = site.host.device_dir / "nvidiactl"
    away = node.with_suffix(".away")
    node.rename(away)
    witness.wait(lambda: site.status()["source"] == "nvml", PATIENCE_S, "samples are the account")
    away.rename(node)
    witness.wait(lambda: site.status()["source"] == "trace", AGAIN_S + PATIENCE_S, "it is told again")
    assert len(logged(site.log(), FOLLOWED)) == 2
    witness.wait_s(5)
    assert error_points(witness, site, 10) < site.status()["source_error_points"]["10"]
    witness.check()
    assert logged(site.log(), FAILED) == []


def test_asked_for_by_name_it_is_needed_to_start(make_site: MakeSite) -> None:
    site = make_site()
    gpu = {"device_dir": str(site.host.device_dir), "source": "trace"}
    site.configure({"a": {}}, gpu=gpu, mechanisms={"driver": "off"})
    site.launch()
    wait_until(lambda: not site.daemon.is_running, PATIENCE_S, "it ends")
    assert "the trace of context switches is required and cannot be had" in site.log()
