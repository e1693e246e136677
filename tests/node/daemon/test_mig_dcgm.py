# SPDX-License-Identifier: Apache-2.0
"""A node whose GPU is in MIG mode, without eBPF: DCGM's load of each instance is the account.

Two tenants have an instance each, and two share one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.simgpu import Workload
from fairsched.simgpu.hostengine import HostEngine
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

PARTLY = Workload("decode", kernels=10, kernel_us=400, gap_us=10_000)
"""Some half of an instance of three slices of seven."""
TENANTS = {
    "alone": {"weight": 1},
    "capped": {"weight": 1, "quota": 0.4},
    "left": {"weight": 3},
    "right": {"weight": 1},
}
SECONDS = 20.0
ERROR_RATIO = 0.1
"""As `error_ratio` of such a tenant says."""


def rows(site: Site) -> dict[str, dict[str, object]]:
    return {one["name"]: one for one in site.status()["tenants"]}


def test_an_instance_of_its_own_is_accounted_and_capped_and_a_shared_one_holds_nobody(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = make_site(mig=(3, 2, 2))
    of_alone, of_capped, of_both = site.host.mig_uuids()
    with HostEngine(str(tmp_path / "engine")) as engine:
        site.daemon.extra_env.update(site.host.dcgm_env())
        site.configure(TENANTS, mechanisms={"ebpf": "off"}, gpu={"dcgm_address": engine.address})
        site.start()
        for tenant, uuid, load in (
            ("alone", of_alone, PARTLY),
            ("capped", of_capped, STEADY),
            ("left", of_both, STEADY),
            ("right", of_both, STEADY),
        ):
            site.spawn(tenant, load, env={"CUDA_VISIBLE_DEVICES": uuid})
        wait_until(lambda: site.status()["source"] == "dcgm", PATIENCE_S, "the load of the instances is told")
        wait_until(lambda: all(site.gpu_time_s(name) > 0 for name in TENANTS), PATIENCE_S, "all are charged")
        site.wait_held("capped", 2 * PATIENCE_S)
        let_run(SECONDS)  # the cap is one of ten seconds
        before, charged = site.truth_ns(), {name: site.gpu_time_s(name) for name in TENANTS}
        let_run(SECONDS)
        after = site.truth_ns()
        truth = {name: (after[name] - before[name]) / 1e9 for name in TENANTS}
        told = {name: site.gpu_time_s(name) - charged[name] for name in TENANTS}
        print({name: (round(told[name], 2), round(truth[name], 2)) for name in TENANTS})
        for name in ("alone", "capped"):
            assert told[name] == pytest.approx(truth[name], rel=ERROR_RATIO), name
        both = told["left"] + told["right"]
        assert both == pytest.approx(truth["left"] + truth["right"], rel=ERROR_RATIO)
        assert truth["capped"] / SECONDS == pytest.approx(0.4, abs=0.05)
        assert {
            d["reason"]["gpu"] for name in TENANTS for d in site.decisions(name) if d["action"] == "hold"
        } == {of_capped}
        confidences = {name: row["gpus"][0]["confidence"] for name, row in rows(site).items()}  # type: ignore[index]
        assert confidences == {"alone": "sampled", "capped": "sampled", "left": "low", "right": "low"}
        assert any("are not told apart" in one for one in site.status()["warnings"])
        engine.stop()
        wait_until(
            lambda: any("work there is not accounted" in one for one in site.status()["warnings"]),
            PATIENCE_S,
            "it is said that nobody tells the load",
        )
    assert logged(site.log(), "Traceback|tick failed|exception=") == []
