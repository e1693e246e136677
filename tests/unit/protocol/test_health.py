# SPDX-License-Identifier: Apache-2.0
"""Another start is due where nothing goes well; a person where what was asked for is not in effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairsched.protocol.health import LIMIT_S, Health

WELL = Health("enforce", "enforce", None, 0.4)


def test_one_that_ticks_and_does_what_it_should_is_well() -> None:
    assert WELL.why_not_live() is None and WELL.why_not_ready() is None


@pytest.mark.parametrize(("age_s", "is_live"), [(LIMIT_S - 0.1, True), (LIMIT_S, False)])
def test_nothing_that_goes_well_for_as_long_as_the_watchdog_waits_asks_for_another_start(
    age_s: float, is_live: bool
) -> None:
    found = replace(WELL, well_age_s=age_s)
    assert (found.why_not_live() is None) == is_live
    assert found.why_not_ready() == found.why_not_live(), "who does not tick is not ready"


def test_a_mode_that_is_not_in_effect_asks_for_a_person_and_for_no_other_start() -> None:
    found = replace(WELL, mode="observe", mode_reason="no brake works here")
    assert found.why_not_live() is None
    assert found.why_not_ready() == "mode is observe, not enforce: no brake works here"


def test_the_answer_of_an_older_daemon_is_no_health() -> None:
    with pytest.raises(KeyError):
        Health.of({"version": "0.0", "pid": 7})
