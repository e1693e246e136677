# SPDX-License-Identifier: Apache-2.0
"""The configuration a newcomer copies is one the daemon takes, and one that pauses nobody."""

from __future__ import annotations

from fairsched.config import DEFAULT_PATH, load
from tests.unit.repo.tree import ROOT

EXAMPLE = ROOT / "packaging/config.example.yaml"


def test_the_example_is_valid_and_holds_nobody() -> None:
    config = load(EXAMPLE)
    assert config.mode == "observe"
    assert {"chat", "batch"} <= set(config.tenants)


def test_a_reload_of_a_bad_file_fails_where_it_is_asked_for() -> None:
    """``fairsched config reload`` waits for the daemon's answer; a signal would always succeed."""
    unit = (ROOT / "packaging/systemd/fairsched.service").read_text(encoding="utf-8")
    assert "ExecReload=/usr/bin/fairsched config reload\n" in unit


def test_the_unit_reads_the_file_that_the_daemon_reads_by_default() -> None:
    unit = (ROOT / "packaging/systemd/fairsched.service").read_text(encoding="utf-8")
    assert f"run --config {DEFAULT_PATH}\n" in unit
