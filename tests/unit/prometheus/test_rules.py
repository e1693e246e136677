# SPDX-License-Identifier: Apache-2.0
"""Rules, alerts, runbooks and the exporter speak of the same things. Promtool's opinion: tests/node/prometheus."""

from __future__ import annotations

import re

import pytest

from tests.unit.prometheus.catalogue import DCGM, samples
from tests.unit.prometheus.shipped import alerts, cases, metrics_of, records, rules
from tests.unit.repo.tree import ROOT

RUNBOOKS = ROOT / "docs/runbooks.md"
PARTS = ["**Meaning.**", "**Look at.**", "**Do.**", "**Harmless**"]
MAX_SUMMARY = 80
"""Characters, with labels by name."""


def sections() -> dict[str, str]:
    """Text by heading of the second level."""
    text = RUNBOOKS.read_text(encoding="utf-8")
    return dict(re.findall(r"^## (\S+)\n(.*?)(?=^#|\Z)", text, flags=re.MULTILINE | re.DOTALL))


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert sorted(sections()) == sorted(alerts())


@pytest.mark.parametrize("alert", alerts())
def test_a_runbook_says_what_it_means_what_to_look_at_what_to_do_and_when_it_is_harmless(alert: str) -> None:
    found = re.findall(r"^\*\*[A-Z][a-z ]*\.?\*\*", sections()[alert], flags=re.MULTILINE)
    assert found == PARTS


def test_links_inside_the_runbooks_lead_somewhere() -> None:
    anchors = {name.lower() for name in sections()}
    links = re.findall(r"\(#([\w-]+)\)", RUNBOOKS.read_text(encoding="utf-8"))
    assert links
    assert set(links) - anchors == set()


@pytest.mark.parametrize("alert", alerts())
def test_an_alert_has_a_severity_texts_with_numbers_and_the_way_to_its_runbook(alert: str) -> None:
    rule = alerts()[alert]
    texts = rule["annotations"]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(texts) == {"summary", "description", "runbook_url"}
    assert texts["runbook_url"] == f"docs/runbooks.md#{alert.lower()}"
    assert len(texts["summary"]) <= MAX_SUMMARY
    assert re.search(r"\$value|\d| minute", texts["description"])


def test_every_metric_of_a_rule_is_one_that_somebody_exports() -> None:
    known = samples() | DCGM | set(records())
    missing = {
        f"{rule.get('alert') or rule['record']}: {name}"
        for rule in rules()
        for name in metrics_of(rule["expr"])
        if name not in known
    }
    assert missing == set()


def test_metrics_are_found_wherever_they_stand_in_an_expression() -> None:
    """The judge of the test above does judge."""
    expression = (
        'sum without (a) (rate(fairsched_x_bucket{job="fairsched_y"}[1m:15s])) / l:fairsched_m:op > DCGM_Z'
    )
    assert metrics_of(expression) == {"fairsched_x_bucket", "l:fairsched_m:op", "DCGM_Z"}


def test_every_alert_is_tested_firing_and_not_firing() -> None:
    wanted = {(alert, is_firing) for alert in alerts() for is_firing in (True, False)}
    assert wanted - set(cases()) == set()


def test_records_are_named_level_metric_operation() -> None:
    assert [name for name in records() if not re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", name)] == []
    assert len([rule for rule in rules() if "record" in rule]) == len(records()), "no name twice"
    assert len([rule for rule in rules() if "alert" in rule]) == len(alerts())
