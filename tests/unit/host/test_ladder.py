# SPDX-License-Identifier: Apache-2.0
"""The sources of GPU time in order, what each promises and what keeps it away."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.host.choose import choose
from fairsched.host.facts import DcgmFact
from fairsched.host.ladder import ladder
from fairsched.model import Source
from tests.unit.host.test_host import DCGM, capable_host, config


@pytest.mark.parametrize(
    ("changed", "text", "used"),
    [
        ({}, "{}", Source.EBPF),
        ({"bcc_version": None}, "{}", Source.NVML),
        ({"bcc_version": None, "dcgm": DCGM}, "{}", Source.DCGM),
        ({}, "gpu: {source: nvml}", Source.NVML),
        ({"bcc_version": None, "driver_version": None}, "{}", None),
    ],
)
def test_one_rung_at_most_is_in_use_and_it_is_the_one_that_is_chosen(
    changed: dict[str, Any], text: str, used: Source | None
) -> None:
    rungs = ladder(capable_host(**changed), config(text))
    assert [rung.source for rung in rungs] == [Source.EBPF, Source.DCGM, Source.NVML]
    assert [rung.source for rung in rungs if rung.is_in_use] == ([used] if used else [])


def test_a_rung_that_is_not_taken_says_what_is_in_the_way() -> None:
    ebpf, dcgm, nvml = ladder(capable_host(bcc_version=None), config())
    assert ebpf.obstacle == "bcc is not installed"
    assert dcgm.obstacle == "not asked"
    assert nvml.obstacle is None
    *_, nvml = ladder(capable_host(bcc_version=None), config("gpu: {enforce_on: [ebpf]}"))
    assert nvml.obstacle is not None and "enforce_on" in nvml.obstacle


def test_each_rung_is_better_than_the_one_below_over_seconds_and_better_over_longer_windows() -> None:
    for rung in ladder(capable_host(), config()):
        assert list(rung.error_points) == sorted(rung.error_points, reverse=True)
    ebpf, dcgm, nvml = (rung.error_points for rung in ladder(capable_host(), config()))
    assert ebpf[0] < dcgm[0] == nvml[0]


def test_samples_are_enforced_on_unless_the_configuration_says_otherwise() -> None:
    facts = capable_host(bcc_version=None)
    choices = choose(facts, config())
    assert (choices.source, choices.can_hold, choices.mode) == (Source.NVML, True, "enforce")
    choices = choose(facts, config("gpu: {enforce_on: [ebpf]}"))
    assert (choices.source, choices.can_hold, choices.mode) == (Source.NVML, False, "observe")
    assert choices.hold_reason == "gpu.enforce_on does not name nvml: observed, nobody is held"
    assert choose(capable_host(), config("gpu: {enforce_on: [ebpf]}")).can_hold
    assert not choose(capable_host(), config("gpu: {enforce_on: []}")).can_hold
    scaled = capable_host(bcc_version=None, dcgm=DcgmFact(True, "nv-hostengine"))
    assert choose(scaled, config("gpu: {enforce_on: [dcgm]}")).can_hold
    assert not choose(facts, config("gpu: {enforce_on: [dcgm]}")).can_hold
