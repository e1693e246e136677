# SPDX-License-Identifier: Apache-2.0
"""Marks, what still holds a GPU, what is in the way of a reset, and why somebody lives: from made facts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairsched.gpu.state import ResetFacts
from fairsched.reclaim.check import judge
from fairsched.reclaim.devices import open_devices
from fairsched.reclaim.end import why_alive
from fairsched.reclaim.facts import Facts, read_facts
from fairsched.reclaim.holder import unseen_text
from fairsched.reclaim.marks import is_orphan, marks_of
from fairsched.reclaim.pauses import Pause
from fairsched.reclaim.reset import hints, obstacles
from tests.unit.reclaim.made import GPU, VIEW, holder, listing, process, table_of

GIB = 1 << 30


# ---- orphans ----


@pytest.mark.parametrize(
    ("changes", "is_one"),
    [
        ({"parent": 1, "session": 5}, True),
        ({"parent": 1, "session": 10, "cgroup": "/user.slice/user-1001.slice/session-3.scope"}, True),
        ({"parent": 1, "session": 10, "cgroup": "/system.slice/chat.service"}, False),
        ({"parent": 1, "session": 30}, False),
        ({"parent": 30, "session": 5}, False),
        ({"parent": 40, "session": 5}, True),
        ({"parent": 50, "session": 5, "namespace_pids": (10, 7)}, True),
        ({"parent": 50, "session": 10, "namespace_pids": (10, 7)}, False),
        ({"parent": 0}, False),
    ],
    ids=str,
)
def test_an_orphan_was_handed_to_an_init_and_is_no_service_of_it(
    changes: dict[str, Any], is_one: bool
) -> None:
    facts = process(10, **changes)
    others = (
        process(30, name="bash"),
        process(40, name="systemd"),
        process(50, 30, namespace_pids=(50, 1)),
    )
    assert is_orphan(facts, table_of(*others, facts)) is is_one


def test_marks_say_what_is_odd() -> None:
    said = marks_of(replace(holder(process(10, state="Z", threads=3)), is_orphan=True))
    assert said == ["defunct to look at, and 2 threads of it left", "its parent is gone: a child of 1 now"]
    assert marks_of(holder(process(10, 7, state="Z"))) == [
        "defunct, and a context of it is listed: its parent 7 has not reaped it"
    ]
    assert marks_of(holder(process(10))) == []


# ---- after it ----


def test_a_gpu_is_free_when_nothing_of_the_targets_is_on_it() -> None:
    table = table_of(process(10), process(11))
    before = listing([holder(table[10]), holder(table[11])], table)
    after = listing([holder(table[11])], table)
    found = judge(before, after, GPU, {10: table[10].start_ticks})
    assert found.is_free and found.others == ("11 (p11)",)
    still = judge(before, before, GPU, {10: table[10].start_ticks})
    assert still.still == ("10 (p10) still has 2.0 GiB",)
    assert judge(before, before, GPU, {10: 1}).is_free, "another process has its pid now"


def test_memory_of_nobody_that_is_there_afterwards_is_named_with_who_has_the_device_open() -> None:
    table = table_of(process(10), process(77, name="worker"))
    before = listing([holder(table[10])], table)
    after = listing([], table, replace(VIEW, unseen_bytes=3 * GIB, openers=(77,)))
    found = judge(before, after, GPU, {10: 1})
    assert found.still == (
        "3.0 GiB in use by no process that is listed; its device file is open in 77 (worker)",
    )
    old = listing([], table, replace(VIEW, unseen_bytes=3 * GIB))
    assert judge(old, after, GPU, {10: 1}).is_free, "it was there before, and is said as a note"
    assert "as before" in judge(old, after, GPU, {10: 1}).notes[0]
    assert unseen_text(replace(VIEW, unseen_bytes=100 << 20), table) is None


# ---- reset ----

FREE = ResetFacts(GPU, False, False, "none", False, True, False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"is_instance": True}, "a MIG instance cannot be reset"),
        ({"has_instances": True}, "it is in MIG mode"),
        ({"virtualization": "vgpu"}, "the host resets it"),
        ({"virtualization": "host_vgpu"}, "shared out as vGPUs"),
        ({"virtualization": "passthrough"}, None),
        ({"has_display": True}, "a display is driven by it"),
        ({"has_instances": None, "virtualization": None, "has_display": None}, None),
    ],
    ids=str,
)
def test_what_is_in_the_way_of_a_reset_is_said(changes: dict[str, Any], said: str | None) -> None:
    found = obstacles(replace(FREE, **changes), listing([], table_of()), is_root=True)
    assert (said is None and found == []) or (said is not None and said in found[0])


def test_no_gpu_is_reset_under_somebody() -> None:
    table = table_of(process(10), process(77, name="worker"), process(78, name="nvidia-persiste", uid=0))
    assert obstacles(FREE, listing([holder(table[10])], table), is_root=True) == ["in use by 10 (p10)"]
    opened = listing([], table, replace(VIEW, openers=(77, 78)))
    assert obstacles(FREE, opened, is_root=True) == ["its device file is open in 77 (worker)"]
    assert obstacles(FREE, listing([], table), is_root=False) == ["a reset needs root: use sudo"]


def test_what_may_explain_a_refusal_is_told_with_it() -> None:
    said = hints(replace(FREE, peers=("00000000:07:00.0",), is_draining=True))
    assert "before Hopper these are reset together" in said[0] and "drained" in said[1]


# ---- who lives ----


@pytest.mark.parametrize(
    ("changes", "pause", "is_forced", "said"),
    [
        ({}, Pause("frozen by x"), False, "frozen by x; or --force"),
        ({}, Pause("frozen by x", keeps_kill=True), True, "frozen by x"),
        ({"tracer": 7}, None, False, "its tracer 7 keeps it: end that first, or --force"),
        ({"state": "t", "tracer": 7}, None, True, "its tracer 7 keeps it: end that first"),
        (
            {"state": "Z", "threads": 2},
            None,
            True,
            "its first thread has ended, 1 thread of it wait in the kernel",
        ),
        ({"is_deaf": True}, None, False, "SIGTERM does nothing to it: --force"),
        ({}, None, False, "it does not end on SIGTERM, or takes longer: --force, or a longer --grace"),
        ({}, None, True, "SIGKILL is on its way and the kernel has not ended it: look at dmesg"),
    ],
)
def test_whoever_lives_is_explained(
    changes: dict[str, Any], pause: Pause | None, is_forced: bool, said: str
) -> None:
    assert why_alive(process(10, **changes), pause, is_forced=is_forced) == said


def test_a_call_that_no_signal_interrupts_is_said() -> None:
    assert "no signal interrupts (D" in why_alive(process(10, state="D"), None, is_forced=True)


# ---- /proc ----


def test_facts_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    directory = tmp_path / "10"
    directory.mkdir()
    numbers = "3 9 8 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 2 0 12345 0 0"
    (directory / "stat").write_text(f"10 (a) b) c) S 7 9 8 0 -1 4194304 {' '.join(numbers.split()[6:])}\n")
    (directory / "status").write_text(
        "Name:\ta) b) c\nUid:\t1001\t0\t0\t0\nNSpid:\t10\t1\nTracerPid:\t5\n"
        "SigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"
    )
    (directory / "cmdline").write_bytes(b"train\x00--name\x00x\x1b[2J\x00")
    facts = read_facts(10, proc=str(tmp_path))
    assert facts == Facts(
        10, 12345, "S", 7, 9, 8, 2, False, 1001, "a) b) c", "train --name x?[2J", (10, 1), 5, None, True
    )
    assert read_facts(11, proc=str(tmp_path)) is None
    (directory / "status").write_text("torn")
    assert read_facts(10, proc=str(tmp_path)) is None


def test_own_facts_are_true() -> None:
    mine = read_facts(os.getpid())
    assert mine is not None and mine.parent == os.getppid() and not mine.is_deaf and not mine.is_zombie
    assert mine.group == os.getpgid(0) and mine.session == os.getsid(0)


def test_a_device_is_found_under_whatever_name_it_is_open(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").write_text("")
    (tmp_path / "nvidia1").write_text("")
    os.link(tmp_path / "nvidia1", tmp_path / "else")
    minors = {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}
    assert os.getpid() not in open_devices(tmp_path, minors)
    with open(tmp_path / "else"):
        assert open_devices(tmp_path, minors)[os.getpid()] == {"GPU-b"}
