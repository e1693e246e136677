# SPDX-License-Identifier: Apache-2.0
"""packaging/grafana/fairsched.json, as data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.unit.repo.tree import ROOT

GENERATOR = ROOT / "packaging/grafana/board.py"
BOARD = ROOT / "packaging/grafana/fairsched.json"


def board() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(BOARD.read_text(encoding="utf-8"))
    return document


def panels() -> Iterator[dict[str, Any]]:
    """Rows included, in the order in which they are shown; what a folded row holds after it."""
    for panel in board()["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def queries() -> Iterator[tuple[str, str]]:
    """(title of the panel, expression)."""
    for panel in panels():
        for target in panel.get("targets") or ():
            yield panel["title"], target["expr"]


def with_variables(expression: str, rate_interval: str = "1m") -> str:
    """The expression as Grafana sends it with every variable at All."""
    for name, value in (("__rate_interval", rate_interval), ("node", ".*"), ("gpu", ".*"), ("tenant", ".*")):
        expression = expression.replace(f"${name}", value)
    return expression
