# SPDX-License-Identifier: Apache-2.0
"""Draws are played end to end, alone and two at a time, and nothing is left of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fair import results
from benchmarks.fair.rungs import TRACED
from benchmarks.machine import ROOT
from benchmarks.robust_draws import draw
from tests.node.benchmarks.plays import cgroups

pytestmark = [pytest.mark.alone, pytest.mark.rest]
TOO_LONG_S = 150.0


@pytest.mark.parametrize(
    ("at_once", "policy"), [(1, "fairsched"), (2, "fairsched"), (1, TRACED)], ids=["one", "two", "traced"]
)
def test_short_draws_are_played_and_summed_up(tmp_path: Path, at_once: int, policy: str) -> None:
    before, summary, raw = cgroups("bench-"), tmp_path / "summary.json", tmp_path / "raw"
    command = [sys.executable, "-m", "benchmarks.robustness", "--draws", str(at_once), "--jobs", str(at_once)]
    command += ["--seconds", "2", "--settle", "2", "--results", str(raw), "--output", str(summary)]
    command += ["--trace"] if policy == TRACED else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TOO_LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    kept = json.loads(summary.read_text())
    assert (kept["played"], kept["not_played"]) == (at_once, [])
    for number in range(1, at_once + 1):
        figures = kept["draws"][str(number)]
        assert figures["none"]["share_error_points"] > 0
        assert figures["fairsched"]["account_error_ratio"] > 0, "it had an account, never quite right"
        assert figures["none"]["account_error_ratio"] is None
        document = results.read(results.path_of(draw(1, number).name, policy, number, raw))
        assert set(document["measures"]["leaves"]) >= {"t1"}
        assert document["measures"]["whole"]["busy_ratio"] > 0.5, "the mix saturates the GPU"
        assert not [
            note for note in document["notes"] if "ended" in note or "overwritten" in note or "trace=" in note
        ]
    assert cgroups("bench-") == before
