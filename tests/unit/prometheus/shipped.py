# SPDX-License-Identifier: Apache-2.0
"""What packaging/prometheus ships, as data: rules, alerts, their tests, and the metrics they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.unit.repo.tree import ROOT

DIRECTORY = ROOT / "packaging/prometheus"
RULE_FILES = (DIRECTORY / "fairsched.rules.yml", DIRECTORY / "fairsched.alerts.yml")
TEST_FILES = tuple(sorted((DIRECTORY / "tests").glob("*.yml")))

_WORD = re.compile(r"(?<![\w:.])[a-zA-Z_][\w:]*")
_QUOTED = re.compile(r'"[^"]*"')

Rule = dict[str, Any]


def rules() -> Iterator[Rule]:
    """Every recording rule and alert, in the order of the files."""
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


def alerts() -> dict[str, Rule]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def records() -> dict[str, Rule]:
    return {rule["record"]: rule for rule in rules() if "record" in rule}


def metrics_of(expression: str) -> set[str]:
    """The metrics of ours, of dcgm-exporter and of recording rules that a PromQL expression names."""
    words = set(_WORD.findall(_QUOTED.sub('""', expression)))
    return {word for word in words if word.startswith(("fairsched_", "DCGM_")) or ":" in word}


def cases() -> Iterator[tuple[str, bool]]:
    """(alert, whether it is to fire) of each case of the unit tests of the rules."""
    for path in TEST_FILES:
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for case in test.get("alert_rule_test", ()):
                yield case["alertname"], bool(case.get("exp_alerts"))
