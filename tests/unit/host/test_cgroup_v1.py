# SPDX-License-Identifier: Apache-2.0
"""What is chosen on hosts where cgroup v2 is not in use, and what doctor says there."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.host.checks import checks
from fairsched.host.choose import choose
from fairsched.host.facts import Check
from fairsched.model import Source
from tests.unit.host.test_host import ALL, capable_host, config

ONLY_V1: dict[str, Any] = {
    "cgroup_mount": "/sys/fs/cgroup/systemd",
    "is_cgroup_v1": True,
    "has_freezer": False,
    "v1_obstacle": None,
}
GATE = "tenants: {a: {gpus: [0]}}"


def row(name: str, changed: dict[str, Any], text: str = "mode: enforce") -> Check:
    (found,) = [one for one in checks(capable_host(**changed), config(text)) if one.name == name]
    return found


def test_tenants_are_accounted_by_samples_and_held_by_the_freezer_of_v1() -> None:
    choices = choose(capable_host(**ONLY_V1), config())
    assert (choices.source, choices.brake, choices.mode) == (Source.NVML, "freezer_v1", "enforce")
    assert choices.can_run
    assert "BPF tells of no other cgroups" in choices.source_reason


def test_without_that_freezer_by_signals() -> None:
    facts = {**ONLY_V1, "v1_obstacle": "not mounted", "has_pidfd": True, "capabilities": ALL | {"CAP_KILL"}}
    choices = choose(capable_host(**facts), config())
    assert (choices.brake, choices.can_hold) == ("sigstop", True)


def test_doctor_says_what_is_missing_and_what_to_do() -> None:
    found = row("cgroup2", ONLY_V1)
    assert (found.level, found.fact) == ("warn", "not in use; cgroup v1 at /sys/fs/cgroup/systemd")
    assert "no eBPF account, no device gate" in found.choice
    assert "unified_cgroup_hierarchy=1" in found.remedy
    assert row("freezer", ONLY_V1).fact == "cgroup v2 is not in use"
    assert row("brake", ONLY_V1).fact.startswith("freezer_v1: ")
    assert "device programs are of v2" in row("device gate", ONLY_V1, GATE).fact


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mechanisms: {ebpf: required}", "ebpf is required, but cgroup v2 is not in use"),
        ("mechanisms: {freezer: required}", "freezer is required, but cgroup v2 is not in use"),
        ("gpu: {source: ebpf}", "no account of GPU time: ebpf: cgroup v2 is not in use"),
    ],
)
def test_what_is_required_and_of_v2_stops_the_start(text: str, says: str) -> None:
    obstacles = choose(capable_host(**ONLY_V1), config(text)).obstacles
    assert any(one.startswith(says) for one in obstacles), obstacles
