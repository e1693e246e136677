# SPDX-License-Identifier: Apache-2.0
"""The shipped rules, alerts and configurations in the eyes of Prometheus' and Alertmanager's own tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import is_full
from tests.node.prometheus.stack import faster
from tests.unit.prometheus.shipped import DIRECTORY, RULE_FILES, TEST_FILES, alerts

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("amtool") is None,
    reason="no promtool or amtool: sudo make setup installs them (Debian: prometheus, prometheus-alertmanager)",
)


def run(*command: object, cwd: Path = DIRECTORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_prometheus_accepts_the_rules_and_both_servers_their_examples() -> None:
    for command in (
        ("promtool", "check", "rules", "--lint-fatal", *RULE_FILES),
        ("promtool", "check", "config", "prometheus.example.yml"),
        ("amtool", "check-config", "alertmanager.example.yml"),
    ):
        out = run(*command)
        assert out.returncode == 0, out.stdout + out.stderr


def test_every_alert_fires_when_it_should_and_not_otherwise() -> None:
    out = run("promtool", "test", "rules", *TEST_FILES)
    assert out.returncode == 0, out.stdout + out.stderr
    assert out.stdout.count("SUCCESS") == len(TEST_FILES)


def failures_with(change: Callable[[dict[str, Any]], None], where: Path) -> set[str]:
    """Names of the alerts whose tests fail after every alert was changed so, and there are no recording rules."""
    shutil.copytree(DIRECTORY, where)
    (where / "fairsched.rules.yml").write_text("groups: []\n")
    path = where / "fairsched.alerts.yml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for group in document["groups"]:
        for rule in group["rules"]:
            change(rule)
    path.write_text(yaml.safe_dump(document))
    out = run("promtool", "test", "rules", *(where / "tests" / one.name for one in TEST_FILES), cwd=where)
    assert out.returncode == 1
    return set(re.findall(r"alertname: ?(\w+)", out.stdout + out.stderr))


def never(rule: dict[str, Any]) -> None:
    rule.update(expr="vector(1) > 2")


def always(rule: dict[str, Any]) -> None:
    rule.update(expr="vector(1)")
    rule.pop("for", None)


def test_the_tests_notice_an_alert_that_is_broken(tmp_path: Path) -> None:
    """One that never fires; with FAIRSCHED_FULL=1 one that always does, too."""
    for change in (never, always) if is_full() else (never,):
        assert set(alerts()) - failures_with(change, tmp_path / change.__name__) == set()


def test_the_faster_copy_differs_in_durations_alone() -> None:
    for path in (*RULE_FILES, DIRECTORY / "prometheus.example.yml", DIRECTORY / "alertmanager.example.yml"):
        text = path.read_text(encoding="utf-8")
        assert faster(text, 1) != text, "milliseconds are written otherwise"
        assert yaml.safe_load(faster(text, 30)) != yaml.safe_load(text)
        for old, new in zip(text.splitlines(), faster(text, 30).splitlines(), strict=True):
            assert re.split(r"\d+m?s\b|\d+[mh]\b", old)[0] == re.split(r"\d+ms\b|\d+[smh]\b", new)[0]


def test_the_faster_copy_divides_every_kind_of_duration() -> None:
    assert faster("for: 3m\n", 30) == "for: 6000ms\n"
    assert (
        faster("expr: avg_over_time((a - b)[1m:15s]) > 20\n", 30)
        == "expr: avg_over_time((a - b)[2000ms:500ms]) > 20\n"
    )
    assert (
        faster("expr: p99_rate1m == p99_rate1m offset 1h\n", 60)
        == "expr: p99_rate1m == p99_rate1m offset 60000ms\n"
    )
    text = "description: >-\n  for 3m (limit 20ms)\nrunbook_url: x\n"
    assert faster(text, 30) == text, "texts for people stay"
