# SPDX-License-Identifier: Apache-2.0
"""The sources of GPU time in order, what each promises and what keeps it away."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.cgroup.journal import BrakeName
from fairsched.host.choose import choose
from fairsched.host.facts import BpfFact, DcgmFact
from fairsched.host.ladder import brakes, ladder, lift
from fairsched.model import Source
from tests.unit.host.test_host import ALL, DCGM, NO_DCGM, capable_host, config

TRACED: dict[str, Any] = {"driver_version": "580.95.05", "capabilities": ALL}


@pytest.mark.parametrize(
    ("changed", "text", "used"),
    [
        ({}, "{}", Source.EBPF),
        ({"bcc_version": None}, "{}", Source.NVML),
        ({"bcc_version": None, "dcgm": DCGM}, "{}", Source.DCGM),
        ({}, "gpu: {source: nvml}", Source.NVML),
        ({"bcc_version": None, **TRACED}, "{}", Source.NVML),
        ({"bcc_version": None, **TRACED}, "mechanisms: {trace: required}", Source.TRACE),
        ({"bcc_version": None, **TRACED, "dcgm": DCGM}, "mechanisms: {trace: off}", Source.DCGM),
        (TRACED, "{}", Source.EBPF),
        (TRACED, "gpu: {source: trace}", Source.TRACE),
        ({"bcc_version": None}, "mechanisms: {trace: required}", Source.NVML),
        ({"bcc_version": None, "driver_version": None}, "{}", None),
    ],
)
def test_one_rung_at_most_is_in_use_and_it_is_the_one_that_is_chosen(
    changed: dict[str, Any], text: str, used: Source | None
) -> None:
    rungs = ladder(capable_host(**changed), config(text))
    assert [rung.source for rung in rungs] == list(Source)
    assert [rung.source for rung in rungs if rung.is_in_use] == ([used] if used else [])


def test_a_rung_that_is_not_taken_says_what_is_in_the_way() -> None:
    ebpf, trace, dcgm, nvml = ladder(capable_host(bcc_version=None), config())
    assert ebpf.obstacle == "bcc is not installed"
    assert trace.obstacle == "of driver 535.54 the trace's structures are not known"
    assert dcgm.obstacle == "not asked"
    assert nvml.obstacle is None
    *_, nvml = ladder(capable_host(bcc_version=None), config("gpu: {enforce_on: [ebpf]}"))
    assert nvml.obstacle is not None and "enforce_on" in nvml.obstacle


def test_each_rung_is_better_than_the_one_below_over_seconds_and_better_over_longer_windows() -> None:
    for rung in ladder(capable_host(), config()):
        assert list(rung.error_points) == sorted(rung.error_points, reverse=True)
    ebpf, trace, dcgm, nvml = (rung.error_points for rung in ladder(capable_host(), config()))
    assert ebpf[0] <= trace[0] < dcgm[0] == nvml[0]


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


MIGHTY = ALL | {"CAP_KILL"}
NO_ATOMICS = (BpfFact("tracepoint", True), BpfFact("atomics", False, "EINVAL", "use Linux 5.12 or later"))
LESS: list[dict[str, Any]] = [
    {"bcc_version": None},
    {"has_uprobes": False},
    {"bpf": NO_ATOMICS},
    {"capabilities": frozenset[str]()},
    {"driver_version": None},
    {"dcgm": NO_DCGM},
    {"cgroup_mount": None},
    {"is_cgroup_v1": True},
    {"has_freezer": False},
    {"has_freezer": False, "has_pidfd": False},
]
WISHES = [
    "mechanisms: {ebpf: off}",
    "mechanisms: {nvml: off}",
    "mechanisms: {freezer: off}",
    "mechanisms: {brake: sigstop}",
    "mechanisms: {brake: none}",
    "gpu: {enforce_on: []}",
    "gpu: {dcgm: off}",
]


@pytest.mark.parametrize(
    ("changed", "text"), [*((one, "{}") for one in LESS), *(({}, text) for text in WISHES)], ids=str
)
def test_whatever_is_in_the_way_has_a_remedy(changed: dict[str, Any], text: str) -> None:
    facts = capable_host(**{"dcgm": DCGM, **changed})
    found = [*ladder(facts, config(text)), *brakes(facts, config(text))]
    assert any(one.obstacle for one in found)
    for one in found:
        assert bool(one.remedy) is bool(one.obstacle), one


def test_a_remedy_names_the_key_that_is_to_be_changed() -> None:
    _, trace, dcgm, nvml = ladder(capable_host(dcgm=DCGM), config("mechanisms: {nvml: off}"))
    assert trace.remedy == dcgm.remedy == nvml.remedy == "set mechanisms.nvml: auto"
    _, trace, *_ = ladder(capable_host(**TRACED), config("mechanisms: {trace: off}"))
    assert trace.remedy == "set mechanisms.trace: auto"


def test_what_would_lift_the_host_is_the_remedy_of_the_rung_above() -> None:
    facts = capable_host(bpf=NO_ATOMICS, **TRACED)
    better = lift(ladder(capable_host(bpf=NO_ATOMICS, dcgm=DCGM, **TRACED), config()))
    assert better is not None and better.remedy == "set gpu.source: trace, where work is always there"
    better = lift(ladder(facts, config("gpu: {source: trace}")))
    assert better is not None
    assert (better.obstacle, better.remedy) == (
        "BPF does not work here (atomics)",
        "use Linux 5.12 or later",
    )
    better = lift(ladder(capable_host(bpf=NO_ATOMICS, dcgm=DCGM), config()))
    assert better is not None and "driver of branch 580" in (better.remedy or ""), (
        "the next one, not the best"
    )
    better = lift(ladder(capable_host(bpf=NO_ATOMICS, dcgm=NO_DCGM), config()))
    assert better is not None and "nvidia-dcgm" in (better.remedy or ""), "the next one, not the best"
    assert lift(ladder(capable_host(), config())) is None
    lowest = lift(ladder(capable_host(bcc_version=None, driver_version=None), config()))
    assert lowest is not None and lowest.remedy == "install the NVIDIA driver"


@pytest.mark.parametrize(
    ("changed", "text", "used"),
    [
        ({}, "{}", BrakeName.FREEZER),
        ({"has_freezer": False}, "{}", BrakeName.SIGSTOP),
        ({"is_cgroup_v1": True, "v1_obstacle": None}, "{}", BrakeName.FREEZER_V1),
        ({}, "mechanisms: {brake: sigstop}", BrakeName.SIGSTOP),
        ({}, "mechanisms: {brake: none}", None),
        ({"cgroup_mount": None}, "{}", None),
    ],
)
def test_one_brake_at_most_is_in_use_and_it_is_the_one_that_is_chosen(
    changed: dict[str, Any], text: str, used: BrakeName | None
) -> None:
    facts = capable_host(capabilities=MIGHTY, **changed)
    found = brakes(facts, config(text))
    assert found[0].brake is BrakeName.FREEZER
    assert [one.brake for one in found if one.is_in_use] == ([used] if used else [])
    assert choose(facts, config(text)).brake == (used.value if used else "none")


def test_what_would_lift_signals_to_a_freezer_is_said() -> None:
    old = {"has_freezer": False, "capabilities": MIGHTY}
    better = lift(brakes(capable_host(**old), config()))
    assert better is not None
    assert "mount the freezer of cgroup v1" in (better.remedy or ""), "the next one, not the best"
    better = lift(brakes(capable_host(**old, v1_obstacle=None), config()))
    assert better is not None
    assert better.remedy == "use a kernel with cgroup.freeze (Linux 5.2)"
    able = capable_host(capabilities=MIGHTY, v1_obstacle=None)
    better = lift(brakes(able, config("mechanisms: {brake: sigstop}")))
    assert better is not None
    assert better.remedy == "set mechanisms.brake: auto"
    assert lift(brakes(capable_host(), config())) is None


def test_who_wants_nobody_held_reads_it_at_every_brake() -> None:
    able = capable_host(capabilities=MIGHTY, v1_obstacle=None)
    found = brakes(able, config("mechanisms: {freezer: off}"))
    assert {(one.obstacle, one.remedy) for one in found} == {
        ("mechanisms.freezer is off", "set mechanisms.freezer: auto")
    }


CGPU = "mechanisms: {brake: cgpu}\ncgpu: {share_file: '/proc/module/{gpu}/{container12}/weight'}"


def test_a_vendors_module_is_a_rung_only_where_it_is_asked_for() -> None:
    assert BrakeName.CGPU not in {one.brake for one in brakes(capable_host(), config())}
    first, *others = brakes(capable_host(), config(CGPU))
    assert (first.brake, first.is_in_use, first.obstacle) == (BrakeName.CGPU, True, None)
    assert all(one.obstacle for one in others)
    first, *_ = brakes(capable_host(cgpu_obstacle="/proc/module is not there"), config(CGPU))
    assert not first.is_in_use
    assert "share_file" in (first.remedy or "")
