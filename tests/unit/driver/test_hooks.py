# SPDX-License-Identifier: Apache-2.0
"""Which hook is chosen, and what is said of the others."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairsched.driver import hooks
from fairsched.driver.hooks import GENERATIONS, NO_DRIVER, HookFacts, HookInForce, choose
from fairsched.host import driver_calls

CAPABLE = HookFacts(
    functions=frozenset(GENERATIONS[0]),
    has_driver=True,
    has_kprobes=True,
    has_lsm=True,
    has_btf=True,
    has_tracepoints=True,
)


def test_a_capable_host_probes_the_driver_itself() -> None:
    found = choose(CAPABLE)
    assert found.hooks == ("kprobe", "lsm", "tracepoint")
    assert found.obstacles == {}
    row = driver_calls.check(found)
    assert (row.level, row.fact) == ("ok", "the driver's own functions")
    assert row.choice.startswith("tried when"), "nobody has"


@pytest.mark.parametrize("functions", GENERATIONS)
def test_both_generations_of_the_driver_are_known(functions: hooks.Functions) -> None:
    facts = replace(CAPABLE, functions=frozenset(functions))
    assert hooks.functions_of(facts) == functions
    assert choose(facts).best == "kprobe"


@pytest.mark.parametrize(
    ("change", "best", "word"),
    [
        ({"has_kprobes": False}, "lsm", "no kprobes"),
        ({"functions": frozenset({"nvidia_unlocked_ioctl"})}, "lsm", "not among the kernel's symbols"),
        ({"functions": frozenset(), "has_driver": False}, "lsm", "not loaded"),
        ({"has_kprobes": False, "has_lsm": False}, "tracepoint", "not among the active"),
        ({"has_kprobes": False, "has_lsm": None}, "tracepoint", "no list"),
    ],
)
def test_each_missing_thing_leads_to_the_next_hook_and_is_said(
    change: dict[str, object], best: str, word: str
) -> None:
    found = choose(replace(CAPABLE, **change))  # type: ignore[arg-type]
    assert found.best == best
    row = driver_calls.check(found)
    assert row.level == "ok"
    assert word in row.fact
    assert "system call" in row.choice


def test_a_simulated_gpu_is_not_seen_through_a_driver_that_is_there_too() -> None:
    assert choose(CAPABLE, are_nodes_plain=True).hooks == ("lsm", "tracepoint")


@pytest.mark.parametrize(
    "change", [{"has_btf": False}, {"has_kprobes": False, "has_lsm": False, "has_tracepoints": False}]
)
def test_with_no_hook_there_is_a_warning_and_a_remedy(change: dict[str, bool]) -> None:
    found = choose(replace(CAPABLE, **change))  # type: ignore[arg-type]
    assert found.hooks == ()
    assert found.best is None
    row = driver_calls.check(found)
    assert row.level == "warn"
    assert row.remedy


def test_what_was_refused_when_it_was_tried_is_said_too() -> None:
    """Which a running daemon knows, and nobody else."""
    row = driver_calls.check(choose(CAPABLE), HookInForce("lsm", None, {"kprobe": "Operation not permitted"}))
    assert row.fact == "security module hooks (no kprobe: Operation not permitted)"
    assert (row.level, row.choice) == ("ok", "in force, costs every system call of the node a little")
    row = driver_calls.check(choose(CAPABLE), HookInForce("kprobe", None, {}))
    assert (row.fact, row.choice) == ("the driver's own functions", "in force")


def test_a_daemon_that_was_refused_every_hook_is_believed() -> None:
    reason = "calls to the driver cannot be seen: the verifier said no"
    row = driver_calls.check(choose(CAPABLE), HookInForce(None, reason, {}))
    assert row.level == "warn"
    assert reason in row.fact and row.remedy


def test_a_daemon_that_waits_for_a_driver_has_tried_nothing() -> None:
    assert driver_calls.check(choose(CAPABLE), HookInForce(None, NO_DRIVER, {})) == driver_calls.check(
        choose(CAPABLE)
    )


def test_facts_are_read_from_files(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (sys / "module/nvidia").mkdir(parents=True)
    (sys / "kernel/tracing").mkdir(parents=True)
    (sys / "kernel/security").mkdir(parents=True)
    (sys / "kernel/security/lsm").write_text("lockdown,capability,bpf\n")
    proc.mkdir()
    (proc / "kallsyms").write_text(
        "0000000000000000 T nvidia_open\n"
        "0000000000000000 t nvidia_frontend_open\t[nvidia]\n"
        "0000000000000000 t nvidia_frontend_close\t[nvidia]\n"
        "0000000000000000 t nvidia_frontend_unlocked_ioctl\t[nvidia]\n"
        "0000000000000000 t nvidia_ioctl\t[nvidia]\n"
    )
    facts = hooks.read_facts(proc, sys)
    assert facts == HookFacts(
        functions=frozenset(GENERATIONS[1]),
        has_driver=True,
        has_kprobes=False,
        has_lsm=True,
        has_btf=False,
        has_tracepoints=True,
    )


@pytest.mark.parametrize(
    ("symbols", "skips"),
    [
        ("0000000000000000 T trace_call_bpf\n0000000000000000 T trace_call_bpf_faultable\n", True),
        ("0000000000000000 T trace_call_bpf\n0000000000000000 T trace_call_bpf_faultable_x\n", False),
    ],
)
def test_a_kernel_that_may_skip_programs_on_a_system_call_is_known(
    tmp_path: Path, symbols: str, skips: bool
) -> None:
    (tmp_path / "kallsyms").write_text(symbols)
    assert hooks.read_facts(tmp_path, tmp_path).skips_syscall_programs is skips


def test_a_kernel_without_syscall_events_has_no_tracepoint_hook(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/tracing/events/sched").mkdir(parents=True)
    assert not hooks.read_facts(tmp_path, tmp_path / "sys").has_tracepoints
    (tmp_path / "sys/kernel/tracing/events/syscalls/sys_enter_ioctl").mkdir(parents=True)
    assert hooks.read_facts(tmp_path, tmp_path / "sys").has_tracepoints


def test_an_unreadable_host_has_nothing(tmp_path: Path) -> None:
    facts = hooks.read_facts(tmp_path, tmp_path)
    assert facts == HookFacts(frozenset(), False, False, None, False, False)


def test_a_directory_that_is_not_ours_to_look_into_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tracefs is for root; that it is there is all that others know."""
    events, real = tmp_path / "kernel/tracing/events", os.stat
    events.mkdir(parents=True)

    def stat(path: Any, **options: Any) -> os.stat_result:
        if os.fspath(path) == str(events):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    assert hooks._has_tracepoints(tmp_path)
