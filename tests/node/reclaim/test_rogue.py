# SPDX-License-Identifier: Apache-2.0
"""``audit rogue`` on a simulated GPU with the daemon's own numbers: a miner is named, and those who work are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from fairsched.simgpu import Workload
from tests.node.daemon.site import PATIENCE_S, Site
from tests.node.reclaim.test_reclaim import run
from tests.support import wait_until

GIB = 1 << 30
WORK = Workload("decode", gap_us=5000, alloc_bytes=2 * GIB, device=1)
RULES = {
    # seconds, for a test; and even to what a busy machine with a simulated GPU can do
    "miner": {"for_s": 4, "load": 0.3, "evenness": 1.0},
    "idle_hoarder": {"for_s": 1, "vram": "1GiB"},
}
LOOK = ("audit", "rogue", "--for", "7s", "--every", "0.4s")


def test_a_miner_is_named_and_those_who_work_are_not(site: Site, tmp_path: Path) -> None:
    site.configure(
        {"chat": {}, "batch": {}},
        mode="observe",
        gpu={"device_dir": str(site.host.device_dir)},
        reclaim={"rules": RULES},
    )
    site.start()
    chat = site.spawn("chat", WORK)
    site.state_dir.mkdir(exist_ok=True)
    program = tmp_path / "xmr-cuda"
    shutil.copy(site.host._parts.load, program)
    miner = site.host.popen(
        [str(program), *Workload("trainer", alloc_bytes=GIB // 2).arguments()],
        cgroup_path=site.cgroup("batch"),
    )
    # Who has memory and has not begun to work yet is idle, and who begins late mines for less than the rule says.
    for tenant in ("chat", "batch"):
        wait_until(lambda tenant=tenant: site.gpu_time_s(tenant) > 0.1, PATIENCE_S, f"{tenant} works")
    tape = site.state_dir / "guard" / "a.tape"
    shown = run(site, *LOOK, "--record", str(tape))
    assert "1 of them reported" in " ".join(shown.split()), tape.read_text()
    replayed: dict[str, Any] = json.loads(run(site, "audit", "rogue", "--replay", str(tape), "--json"))
    (one,) = replayed["reported"]
    assert one["process"]["pid"] == miner.pid != chat.pid
    assert one["process"]["tenant"] == "batch"
    assert {finding["kind"] for finding in one["findings"]} >= {"miner"}
    assert "batch" in run(site, "audit", "rogue", "--weekly")
    miner.kill()
    miner.wait()
