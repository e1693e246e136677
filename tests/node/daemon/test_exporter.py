# SPDX-License-Identifier: Apache-2.0
"""What a real daemon exports: every family that a node with GPUs must have, and the truth about itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import is_node_required
from tests.node.daemon.site import DECODE, PATIENCE_S, STEADY, Site, stand_still
from tests.node.daemon.test_misbehaviour import free_port
from tests.support import wait_until

WANTED = {
    "gpu_time_seconds",
    "entitlement_ratio",
    "share_ratio",
    "lag_seconds",
    "drain_seconds",
    "queue_delay_seconds",
    "weight",
    "tenant_state",
    "low_confidence",
    "holds",
    "held_seconds",
    "hold_age_seconds",
    "hold_limit_seconds",
    "fairness_error_ratio",
    "fairness_jain_ratio",
    "gpu_info",
    "gpu_up",
    "gpu_busy_ratio",
    "gpu_utilization_ratio",
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "gpu_temperature_celsius",
    "gpu_power_watts",
    "gpu_power_limit_watts",
    "gpu_pcie_bytes_per_second",
    "gpu_active_ratio",
    "gpu_xid_errors",
    "tick_duration_seconds",
    "process_cpu_seconds",
    "process_resident_bytes",
    "bpf_dropped",
    "bpf_errors",
    "bpf_map_entries",
    "bpf_map_capacity_entries",
    "control_requests",
    "companion_up",
    "errors",
}


class Scraper:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self.text = ""

    def families(self) -> dict[str, Metric]:
        """By name without its prefix; empty while nobody answers."""
        try:
            with urllib.request.urlopen(self._url, timeout=PATIENCE_S) as answer:
                self.text = answer.read().decode()
        except (urllib.error.URLError, OSError):
            return {}
        return {one.name.removeprefix("fairsched_"): one for one in text_string_to_metric_families(self.text)}

    def value(self, family: str, **labels: str) -> float | None:
        """Of the first series of a family with these labels."""
        found = self.families().get(family)
        samples = found.samples if found is not None else []
        return next((one.value for one in samples if labels.items() <= one.labels.items()), None)


def test_a_real_daemon_has_every_family_and_the_tools_find_no_fault(site: Site) -> None:
    port = free_port()
    site.configure({"chat": {"weight": 3}, "train": {"class": "batch"}}, metrics={"listen": f":{port}"})
    site.start()
    site.attach()
    site.spawn("chat", DECODE)
    site.spawn("train", STEADY)
    scraper = Scraper(port)

    def lacks() -> set[str]:
        found = scraper.families()
        waits = {one.labels["tenant"] for one in getattr(found.get("queue_delay_seconds"), "samples", ())}
        return WANTED - found.keys() | ({"chat", "train"} - waits)

    wait_until(lambda: not lacks(), PATIENCE_S, "the page has everything")
    roles = {one.labels["process"] for one in scraper.families()["process_cpu_seconds"].samples}
    assert roles == {"daemon", "guardian", "attacher", "companion"}
    assert (scraper.value("up"), scraper.value("companion_restarts")) == (1, 0)
    assert scraper.value("bpf_map_entries", map="delay_by_key") == 2
    assert scraper.value("bpf_map_capacity_entries", map="delay_by_key") == 4096
    assert scraper.value("gpu_xid_errors", xid="79") == 0
    site.host.report_xid(79)
    wait_until(lambda: scraper.value("gpu_xid_errors", xid="79") == 1, PATIENCE_S, "the report is counted")
    if shutil.which("promtool") is None:
        why = "promtool is not installed: apt-get install prometheus, or: sudo make setup"
        if is_node_required():
            pytest.fail(why)
        pytest.skip(why)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=scraper.text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_daemon_that_hangs_is_down_and_a_companion_that_dies_is_replaced(site: Site) -> None:
    port = free_port()
    site.configure({"chat": {}}, metrics={"listen": f":{port}"})
    site.start()
    scraper = Scraper(port)
    wait_until(lambda: scraper.value("up") == 1, PATIENCE_S, "the page is there")
    stand_still(site.pid)
    try:
        wait_until(lambda: scraper.value("up") == 0, PATIENCE_S, "the page says that the daemon is down")
        assert "fairsched_build_info" not in scraper.text
    finally:
        os.kill(site.pid, signal.SIGCONT)
    wait_until(lambda: scraper.value("up") == 1, PATIENCE_S, "and that it is back")
    os.kill(site.status()["companion"]["pid"], signal.SIGKILL)
    wait_until(
        lambda: scraper.value("companion_restarts") == 1, PATIENCE_S, "another companion serves the page"
    )
