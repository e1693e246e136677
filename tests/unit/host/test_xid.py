# SPDX-License-Identifier: Apache-2.0
"""What doctor says of the errors that the driver reports."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.host.checks import checks
from tests.unit.host.test_host import capable_host, config


@pytest.mark.parametrize(
    ("changed", "text", "level"),
    [
        ({}, "mode: enforce", "ok"),
        ({"xid_obstacle": "Not Supported"}, "mode: enforce", "ok"),
        ({"xid_obstacle": "Not Supported"}, 'metrics: {listen: ":9477"}', "warn"),
        ({"gpus": ()}, "mode: enforce", None),
    ],
)
def test_the_doctor_says_whether_errors_of_the_driver_can_be_known(
    changed: dict[str, Any], text: str, level: str | None
) -> None:
    rows = [check for check in checks(capable_host(**changed), config(text)) if check.name == "xid"]
    assert [row.level for row in rows] == ([] if level is None else [level])
    for row in rows:
        assert ("Not Supported" in row.fact) is ("xid_obstacle" in changed)
        assert ("dcgm-exporter" in row.remedy) is (level == "warn")
