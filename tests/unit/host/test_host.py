# SPDX-License-Identifier: Apache-2.0
"""What is chosen on a host: a capable one, with one fact changed per case."""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairsched.base.privileges import _CAPABILITIES
from fairsched.config import Config, from_bytes
from fairsched.driver.hooks import HookFacts
from fairsched.driver.pid_view_choice import PidViewFacts
from fairsched.host import choose as choose_module
from fairsched.host.checks import checks
from fairsched.host.choose import choose
from fairsched.host.facts import BpfFact, Check, DcgmFact, GpuFact, HostFacts
from fairsched.host.gather import find_libcuda, gather
from fairsched.model import Source

HOST = Path(choose_module.__file__).parent
ALL = frozenset({"CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN"})


def capable_host(**changed: Any) -> HostFacts:
    """A host on which everything works, and what is different about it."""
    host = HostFacts(
        kernel_release="6.1.0",
        is_root=True,
        capabilities=ALL,
        has_btf=True,
        has_uprobes=True,
        lockdown="none",
        bcc_version="0.26.0",
        bpf=(BpfFact("uprobe", True), BpfFact("maps", True)),
        cgroup_mount="/sys/fs/cgroup",
        is_cgroup_hybrid=False,
        has_freezer=True,
        freeze_latency_ns=40_000,
        sees_foreign_pauses=True,
        libcuda=("/usr/lib/x86_64-linux-gnu/libcuda.so.1",),
        driver_version="535.54",
        nvml_error=None,
        gpus=(GpuFact("GPU-5f2c1a90", "NVIDIA L4"),),
        clock_source="tsc",
        preemption="PREEMPT_DYNAMIC",
        has_systemd=True,
        has_group=True,
        daemon_pid=None,
        leftover_holds=0,
    )
    return replace(host, **changed)


def config(text: str = "mode: enforce") -> Config:
    return from_bytes(text.encode(), "f")


def test_a_capable_host_takes_the_best_account_and_holds() -> None:
    choices = choose(capable_host(), config())
    assert (choices.source, choices.can_hold, choices.mode) == (Source.EBPF, True, "enforce")
    assert choices.can_run
    assert {check.level for check in checks(capable_host(), config())} == {"ok"}


@pytest.mark.parametrize(
    ("changed", "source", "says"),
    [
        ({"bcc_version": None}, Source.NVML, "bcc is not installed"),
        ({"has_uprobes": False}, Source.NVML, "no uprobes"),
        ({"lockdown": "confidentiality"}, Source.EBPF, "most exact"),
        ({"capabilities": ALL - {"CAP_BPF", "CAP_SYS_ADMIN"}}, Source.NVML, "CAP_BPF"),
        ({"bpf": (BpfFact("uprobe", False, "EPERM"),)}, Source.NVML, "(uprobe)"),
        ({"bpf": None}, Source.EBPF, "most exact"),
        ({"lockdown": "integrity"}, Source.EBPF, "most exact"),
        ({"lockdown": None}, Source.EBPF, "most exact"),
        ({"driver_version": None, "nvml_error": "no driver"}, Source.EBPF, "most exact"),
        ({"has_btf": False}, Source.EBPF, "most exact"),
        ({"bcc_version": None, "driver_version": None}, None, "no reason given"),
    ],
)
def test_one_fact_changes_the_account(changed: dict[str, Any], source: Source | None, says: str) -> None:
    choices = choose(capable_host(**changed), config())
    assert choices.source is source
    assert says in choices.source_reason
    assert choices.can_run is (source is not None)


DCGM = DcgmFact(True, "host engine at 127.0.0.1:5555, DCGM 4.6.0: GPU 0 43 %")
NO_DCGM = DcgmFact(False, "dcgm: dcgmConnect_v2: Connection is not valid (-21)")


@pytest.mark.parametrize(
    ("changed", "text", "source"),
    [
        ({"dcgm": DCGM}, "mode: enforce", Source.EBPF),
        ({"dcgm": DCGM, "bcc_version": None}, "mode: enforce", Source.DCGM),
        ({"dcgm": NO_DCGM, "bcc_version": None}, "mode: enforce", Source.NVML),
        ({"dcgm": DCGM, "bcc_version": None}, "gpu: {dcgm: off}", Source.NVML),
        ({"dcgm": DCGM}, "gpu: {source: dcgm}", Source.DCGM),
        ({"dcgm": DCGM}, "gpu: {source: nvml}", Source.NVML),
        ({"dcgm": NO_DCGM}, "gpu: {source: dcgm}", None),
        ({"dcgm": DCGM, "driver_version": None}, "gpu: {source: dcgm}", None),
        ({"dcgm": None}, "gpu: {source: dcgm}", None),
    ],
)
def test_dcgm_comes_between_ebpf_and_bare_samples(
    changed: dict[str, Any], text: str, source: Source | None
) -> None:
    choices = choose(capable_host(**changed), config(text))
    assert choices.source is source
    assert choices.can_hold


def test_a_required_dcgm_that_does_not_answer_stops_the_start() -> None:
    wanted = config("gpu: {dcgm: required}")
    choices = choose(capable_host(dcgm=NO_DCGM), wanted)
    assert any(
        "gpu.dcgm is required, but" in obstacle and "-21" in obstacle for obstacle in choices.obstacles
    )
    assert choose(capable_host(dcgm=DCGM), wanted).can_run


@pytest.mark.parametrize(
    ("fact", "text", "level"),
    [(DCGM, "auto", "ok"), (NO_DCGM, "auto", "ok"), (NO_DCGM, "required", "fail"), (None, "auto", None)],
)
def test_the_doctor_has_a_row_for_dcgm(fact: DcgmFact | None, text: str, level: str | None) -> None:
    wanted = config(f"gpu: {{dcgm: {text}}}")
    rows = [check for check in checks(capable_host(dcgm=fact), wanted) if check.name == "dcgm"]
    assert [row.level for row in rows] == ([] if level is None else [level])
    for row in rows:
        assert ("gpu.dcgm_exporter" in row.remedy) is (level == "fail")


def test_what_dcgm_would_help_with_is_said_where_samples_are_the_account() -> None:
    def row(fact: DcgmFact, **changed: Any) -> Check:
        return next(c for c in checks(capable_host(dcgm=fact, **changed), config()) if c.name == "dcgm")

    assert row(DCGM).choice == "not needed beside eBPF" and not row(NO_DCGM).remedy
    assert row(DCGM, bcc_version=None).choice == "scales NVML's samples"
    assert "-21" in row(NO_DCGM, bcc_version=None).fact and row(NO_DCGM, bcc_version=None).remedy


@pytest.mark.parametrize(
    "changed",
    [{"has_freezer": False}, {"capabilities": ALL - {"CAP_DAC_OVERRIDE"}}],
)
def test_a_host_that_cannot_hold_observes_and_says_so(changed: dict[str, Any]) -> None:
    choices = choose(capable_host(**changed), config())
    assert (choices.can_hold, choices.mode, choices.can_run) == (False, "observe", True)
    assert choices.hold_reason


SIGNALS: dict[str, Any] = {"capabilities": ALL | {"CAP_KILL"}, "has_pidfd": True}
V1: dict[str, Any] = {"v1_obstacle": None}


@pytest.mark.parametrize(
    ("changed", "mechanisms", "brake", "says"),
    [
        ({}, "", "freezer", "works"),
        (SIGNALS, "", "freezer", "works"),
        ({**SIGNALS, "has_freezer": False}, "", "sigstop", "does not work"),
        ({**SIGNALS, "has_freezer": False, "has_pidfd": False}, "", "none", "no pidfd"),
        ({"has_freezer": False, "has_pidfd": True}, "", "none", "CAP_KILL"),
        ({**SIGNALS, "has_freezer": False}, "freezer: off", "none", "is off"),
        ({**SIGNALS, **V1, "has_freezer": False}, "", "freezer_v1", "does not work"),
        ({**V1, "has_freezer": False}, "freezer: off", "none", "is off"),
        (V1, "brake: freezer_v1, freezer: off", "freezer_v1", "asks for it"),
        (SIGNALS, "brake: sigstop", "sigstop", "asks for it"),
        (SIGNALS, "brake: sigstop, freezer: off", "sigstop", "asks for it"),
        (SIGNALS, "brake: none", "none", "is none"),
        (SIGNALS, "brake: freezer", "freezer", "asks for it"),
    ],
)
def test_the_brake_is_the_best_that_works_or_the_one_that_is_named(
    changed: dict[str, Any], mechanisms: str, brake: str, says: str
) -> None:
    wanted, host = config(f"mode: observe\nmechanisms: {{{mechanisms}}}"), capable_host(**changed)
    choices = choose(host, wanted)
    assert (choices.brake, choices.can_hold, choices.can_run) == (brake, brake != "none", True)
    assert says in choices.hold_reason
    (row,) = [row for row in checks(host, wanted) if row.name == "brake"]
    assert row.fact == f"{brake}: {choices.hold_reason}"
    is_best_or_wished = brake == "freezer" or (brake == "none" and mechanisms != "")
    assert row.level == ("ok" if is_best_or_wished else "warn")


@pytest.mark.parametrize(
    ("changed", "mechanisms", "says"),
    [
        ({**SIGNALS, "has_freezer": False}, "brake: freezer", "brake is freezer, but cgroup.freeze"),
        ({"has_pidfd": True}, "brake: sigstop", "brake is sigstop, but CAP_KILL missing"),
        ({"v1_obstacle": "not mounted"}, "brake: freezer_v1", "brake is freezer_v1, but not mounted"),
        (
            {**V1, "capabilities": ALL - {"CAP_DAC_OVERRIDE"}},
            "brake: freezer_v1",
            "CAP_DAC_OVERRIDE missing",
        ),
        ({**SIGNALS, "has_freezer": False}, "freezer: required", "freezer is required, but cgroup.freeze"),
    ],
)
def test_a_brake_that_is_named_and_does_not_work_stops_the_start(
    changed: dict[str, Any], mechanisms: str, says: str
) -> None:
    choices = choose(capable_host(**changed), config(f"mechanisms: {{{mechanisms}}}"))
    assert any(says in obstacle for obstacle in choices.obstacles)


def test_every_capability_that_is_judged_is_looked_for() -> None:
    judged = {name for path in HOST.glob("*.py") for name in re.findall(r"CAP_[A-Z_]+", path.read_text())}
    assert "CAP_KILL" in judged
    assert judged <= _CAPABILITIES.keys()


def test_an_unknown_freezer_is_not_the_same_as_none() -> None:
    assert choose(capable_host(has_freezer=None), config()).can_hold


def test_without_cgroup2_it_cannot_run() -> None:
    choices = choose(capable_host(cgroup_mount=None), config())
    assert choices.can_run is False
    assert "cgroup v2 is not mounted" in choices.obstacles


@pytest.mark.parametrize(
    ("mechanism", "changed"),
    [
        ("ebpf", {"bcc_version": None}),
        ("nvml", {"driver_version": None}),
        ("freezer", {"has_freezer": False}),
    ],
)
def test_what_is_required_and_missing_stops_the_start(mechanism: str, changed: dict[str, Any]) -> None:
    wanted = config(f"mechanisms: {{{mechanism}: required}}")
    choices = choose(capable_host(**changed), wanted)
    assert any(f"{mechanism} is required" in obstacle for obstacle in choices.obstacles)
    assert "fail" in {check.level for check in checks(capable_host(**changed), wanted)}
    assert choose(capable_host(**changed), config()).can_run


def test_what_is_off_is_not_used_and_not_complained_about() -> None:
    wanted = config("mechanisms: {ebpf: off}")
    choices = choose(capable_host(bcc_version=None), wanted)
    assert choices.source is Source.NVML
    assert "off" in choices.source_reason
    assert {check.level for check in checks(capable_host(bcc_version=None), wanted)} == {"ok"}


def test_a_named_source_has_no_fallback() -> None:
    assert choose(capable_host(bcc_version=None), config("gpu: {source: ebpf}")).source is None
    assert choose(capable_host(), config("gpu: {source: nvml}")).source is Source.NVML


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"is_root": False}, "root"),
        ({"capabilities": frozenset()}, "capabilities"),
        ({"cgroup_mount": None}, "cgroup2"),
        ({"has_freezer": False}, "freezer"),
        ({"bcc_version": None}, "bcc"),
        ({"has_btf": False}, "btf"),
        ({"has_uprobes": False}, "uprobes"),
        ({"lockdown": "confidentiality"}, "lockdown"),
        ({"driver_version": None}, "nvml"),
        ({"has_own_pid_namespace": True}, "pid namespace"),
        ({"libcuda": ()}, "libcuda"),
        ({"clock_source": "hpet"}, "clock"),
        ({"has_systemd": False}, "systemd"),
        ({"leftover_holds": 2}, "journal"),
    ],
)
def test_what_is_not_ok_comes_with_a_remedy(changed: dict[str, Any], name: str) -> None:
    found = [check for check in checks(capable_host(**changed), config()) if check.name == name]
    assert found
    assert found[0].level != "ok"
    assert found[0].remedy


def test_facts_of_this_host_can_be_gathered() -> None:
    facts = gather(Config(), try_bpf=False)
    assert facts.bpf is None
    assert checks(facts, Config())


def test_one_library_under_two_names_is_one_library(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    (tmp_path / "same").symlink_to("libcuda.so.1")
    named = (tmp_path / "libcuda.so.1", tmp_path / "same", tmp_path / "none")
    assert [path for path in find_libcuda(named) if path.startswith(str(tmp_path))] == [str(named[0])]


@pytest.mark.skipif(os.geteuid() != 0, reason="map_files is for root: sudo make test-unit")
def test_a_mapped_library_is_found_without_a_look_at_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user may serve the file system that it is on, and not answer."""
    library, real = tmp_path / "libcuda.so.7", os.stat

    def stat(path: Any, *options: Any, **named: Any) -> os.stat_result:
        assert not str(path).endswith(library.name)
        return real(path, *options, **named)

    library.write_bytes(b"x")
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ),
        monkeypatch.context() as patch,
    ):
        patch.setattr(os, "stat", stat)
        found = find_libcuda()
    assert f"/proc/{os.getpid()}/root{library}" in found


def test_the_doctor_says_how_calls_to_the_driver_are_seen() -> None:
    seen = HookFacts(frozenset(), False, False, False, has_btf=True, has_tracepoints=True)
    (row,) = [check for check in checks(capable_host(hooks=seen), config()) if check.name == "driver calls"]
    assert row.fact.startswith("system call tracepoints (no kprobe: ")
    assert "driver calls" not in {check.name for check in checks(capable_host(), config())}


VIEW = PidViewFacts(
    is_initial_namespace=True,
    has_sys_admin=True,
    has_kprobes=True,
    has_btf=True,
    lockdown="none",
    write_refusal=None,
    entry="nvidia_unlocked_ioctl",
    has_driver=True,
    has_translator=True,
)


@pytest.mark.parametrize(
    ("wish", "facts", "level", "can_run"),
    [
        ("auto", VIEW, "ok", True),
        ("required", VIEW, "ok", True),
        ("auto", replace(VIEW, lockdown="integrity"), "warn", True),
        ("required", replace(VIEW, lockdown="integrity"), "fail", False),
        ("required", replace(VIEW, entry=None, has_driver=False), "ok", True),
    ],
)
def test_doctor_says_what_stands_against_process_lists_in_containers(
    wish: str, facts: PidViewFacts, level: str, can_run: bool
) -> None:
    host, wanted = capable_host(pid_view=facts), config(f"mechanisms: {{pid_view: {wish}}}")
    row = next(check for check in checks(host, wanted) if check.name == "pid view")
    assert row.level == level
    assert row.choice
    assert choose(host, wanted).can_run is can_run
    if level != "ok":
        assert "lockdown (integrity)" in row.fact
        assert row.remedy


def test_doctor_is_silent_about_process_lists_that_nobody_wants() -> None:
    assert not [check for check in checks(capable_host(), config()) if check.name == "pid view"]


GATED = "mode: enforce\ntenants: {a: {gpus: [0]}}"


def gate_row(facts: HostFacts, text: str) -> tuple[str, str, str]:
    (row,) = [check for check in checks(facts, config(text)) if check.name == "device gate"]
    return row.level, row.fact, row.remedy


def test_a_gate_nobody_asks_for_is_no_matter() -> None:
    broken = capable_host(
        bpf=(BpfFact("device program", False, "Operation not permitted"),), bcc_version=None
    )
    assert gate_row(broken, "mode: enforce")[:2] == ("ok", "nothing in the configuration asks for it")


@pytest.mark.parametrize(
    ("text", "level", "fact"),
    [
        (GATED, "ok", "asked for, and device programs can be loaded"),
        (GATED.replace("enforce", "observe"), "warn", "asked for, but mode is observe"),
        (
            f"{GATED}\nmechanisms: {{device_gate: off}}",
            "warn",
            "asked for, but mechanisms.device_gate is off",
        ),
        ("mode: enforce\ndevices: {default: deny}", "ok", "asked for, and device programs can be loaded"),
    ],
)
def test_a_gate_that_is_asked_for_is_told_of(text: str, level: str, fact: str) -> None:
    assert gate_row(capable_host(), text)[:2] == (level, fact)


def test_a_gate_that_cannot_be_is_a_warning_and_when_required_no_start() -> None:
    facts = capable_host(bpf=(BpfFact("device program", False, "Operation not permitted", is_needed=False),))
    assert gate_row(facts, GATED)[:2] == ("warn", "device program: Operation not permitted")
    assert choose(facts, config(GATED)).can_run
    required = f"{GATED}\nmechanisms: {{device_gate: required}}"
    assert gate_row(facts, required)[0] == "fail"
    assert choose(facts, config(required)).obstacles == (
        "device_gate is required, but device program: Operation not permitted",
    )


def test_a_gate_that_was_left_behind_is_named_with_the_way_out() -> None:
    rows = [
        check
        for check in checks(capable_host(gates=1), config("mode: observe"))
        if check.name == "device gate"
    ]
    assert (rows[0].level, "fairsched release" in rows[0].remedy) == ("warn", True)
    with_daemon = capable_host(gates=1, daemon_pid=7)
    assert gate_row(with_daemon, GATED)[0] == "ok"


@pytest.mark.parametrize(
    "wish, driver, level, follows",
    [
        ("auto", "580.159.04", "ok", "the GPU tells whose turn it is"),
        ("auto", "550.163.01", "ok", "turns are replayed"),
        ("required", "550.163.01", "ok", "the GPU tells whose turn it is"),
        ("required", "535.54", "fail", "turns are replayed"),
        ("off", "580.159.04", "ok", "turns are replayed"),
    ],
)
def test_doctor_says_whether_the_gpus_trace_is_tried(
    wish: str, driver: str, level: str, follows: str
) -> None:
    rows = checks(capable_host(driver_version=driver), config(f"mechanisms: {{trace: {wish}}}"))
    row = next(row for row in rows if row.name == "trace")
    assert (row.level, row.choice.startswith(follows)) == (level, True)
    assert ("mechanisms.trace: required" in row.remedy) is (wish == "auto" and driver.startswith("550"))
