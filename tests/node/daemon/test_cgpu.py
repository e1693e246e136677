# SPDX-License-Identifier: Apache-2.0
"""A daemon beside a vendor's module, whose files are played: shares are written, and put back whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.daemon.site import PATIENCE_S, Site, logged
from tests.node.promptness import time_until
from tests.support import wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

IDS = {"chat": "a" * 64, "batch": "b" * 64}
Says = Callable[[], list[str]]


@pytest.fixture
def says(site: Site, tmp_path: Path) -> Says:
    """What the module was told of chat and batch; both have a container on GPU 0."""
    proc = tmp_path / "cgpu_km"
    files = [proc / "0" / name[:12] / "weight" for name in IDS.values()]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("100\n")
    leaves = {name: f"docker-{container}.scope" for name, container in IDS.items()}
    tenants = {name: {"cgroup": f"{site.top}/{leaf}"} for name, leaf in leaves.items()}
    for leaf in leaves.values():
        site.make_cgroup(leaf)
    site.configure(
        {"chat": {**tenants["chat"], "weight": 3}, "batch": {**tenants["batch"], "weight": 1}},
        mechanisms={"brake": "cgpu", "ebpf": "off"},
        cgpu={"share_file": f"{proc}/{{gpu}}/{{container12}}/weight"},
    )
    return lambda: [file.read_text().strip() for file in files]


def start(site: Site, says: Says) -> None:
    site.start()
    wait_until(lambda: says() == ["75", "25"], PATIENCE_S, "the shares are written")


def test_shares_are_written_and_put_back_at_the_end(site: Site, says: Says) -> None:
    start(site, says)
    status = site.status()
    assert status["mode"] == "observe"
    assert "it takes the shares, and nobody is held" in status["mode_reason"]
    assert logged(site.log(), "brake=cgpu reason=")
    assert site.stop() == 0
    assert says() == ["100", "100"]
    assert not any((site.run_dir / "holds").iterdir())


def test_a_killed_daemon_leaves_no_share_behind(site: Site, says: Says) -> None:
    start(site, says)
    site.kill()
    took = time_until(lambda: says() == ["100", "100"], PATIENCE_S, "the guardian has put all back")
    assert took.own_s < 1, took


def test_doctor_says_who_shares_the_gpu(site: Site, says: Says) -> None:
    assert says() == ["100", "100"]
    done = site.cli("doctor", "--no-bpf", "--json", "--config", str(site.config_path))
    answer = json.loads(done.stdout)
    assert (answer["choices"]["brake"], answer["choices"]["can_hold"]) == ("cgpu", False)
    (row,) = [row for row in answer["checks"] if row["name"] == "brake"]
    assert row["fact"].startswith("cgpu: ")
