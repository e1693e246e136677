# SPDX-License-Identifier: Apache-2.0
"""The screens of ps: at most 80 columns, and n/a for what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fairsched.cli import ps
from fairsched.protocol.process import ProcessStatus
from fairsched.reclaim.facts import Facts
from fairsched.reclaim.holder import GpuView, Holder
from tests.unit.protocol import fakes


def narrow(lines: Sequence[str]) -> str:
    """The screen as text, once every line is known to fit."""
    assert all(len(line) <= 80 for line in lines), lines
    return "\n".join(lines)


def holders() -> list[Holder]:
    """Of the daemon's rows; of the first all is known."""
    first, *others = map(Holder, fakes.processes())
    facts = Facts(4194301, 1, "S", 1, 1, 1, 1, False, 1001, "python3", "python3")
    return [replace(first, facts=facts, user="ann", age_s=7500.0), *others]


def test_the_ps_screen() -> None:
    views = [GpuView(fakes.GPU, "3", 0, 20 << 30, 80 << 30, 2 << 30, (99,))]
    screen = narrow(ps.render(holders(), views))
    assert screen == "\n".join(
        [
            "GPU-5f2c1a90: 2 processes; GPU 3, 20.0G of 80.0G in use",
            "TENANT        USER      PID   VRAM   TIME  AGE  WHERE            COMMAND",
            "chat          ann   4194301  18.0G  2.2 h   2h  0a1b2c3d/3f3f3f  python3 -m vll…",
            "a-tenant-wi…  n/a       812      0    n/a  n/a  a-tenant-wi…     train",
            "  ! has a context, no launch of it was seen",
            "  ! the driver lists it, and it is not in /proc",
            "  ! holds the GPU, nothing launched for 25 min",
            "  ! 2.0 GiB in use by no process that is listed; its device file is open in 99",
            "",
            "GPU-99999999: 1 process",
            "TENANT        USER      PID   VRAM   TIME  AGE  WHERE            COMMAND",
            "-             n/a        77    n/a  1.2 s  n/a  n/a              n/a",
            "  ! the driver lists it, and it is not in /proc",
        ]
    )


def test_memory_of_nobody_is_shown_where_nothing_was_filtered() -> None:
    view = GpuView(fakes.GPU, "3", 0, 20 << 30, 80 << 30, 20 << 30, (99,))
    assert narrow(ps.render([], [view], is_all=True)) == "\n".join(
        [
            "GPU-5f2c1a90: 0 processes; GPU 3, 20.0G of 80.0G in use",
            "  ! 20.0 GiB in use by no process that is listed; its device file is open in 99",
        ]
    )
    assert narrow(ps.render([], [view])) == "no process uses a GPU"


def test_the_tree_shows_parents_and_fits() -> None:
    def process(pid: int, parent: int, command: str) -> Facts:
        return Facts(pid, 1, "S", parent, 1, 1, 1, False, 1001, command[:15], command)

    table = {
        one.pid: one
        for one in (process(1, 0, "init"), process(10, 1, "bash"), process(11, 10, "/bin/torchrun x.py"))
    }
    table |= {pid: process(pid, 11, "python train.py " * 9) for pid in (12, 13)}
    rows = [
        Holder(
            ProcessStatus(pid, fakes.GPU, vram_bytes=2 << 30, command="python train.py"),
            table[pid],
            "ann",
            "0",
            61,
        )
        for pid in (12, 13)
    ]
    assert narrow(ps.render_tree(rows, table)) == "\n".join(
        [
            "USER  PID  GPU  VRAM  AGE  COMMAND",
            "-      10  -       -    -  bash",
            "-      11  -       -    -    torchrun x.py",
            "ann    12  0    2.0G   1m      python train.py",
            "ann    13  0    2.0G   1m      python train.py",
        ]
    )
    assert ps.render_tree([], table) == ["no process uses a GPU"]


@pytest.mark.parametrize(("idle_s", "said"), [(None, 0), (599.0, 0), (600.0, 1)])
def test_ps_marks_who_has_held_a_gpu_for_ten_minutes_and_done_nothing(
    idle_s: float | None, said: int
) -> None:
    process = Holder(replace(fakes.processes()[0], idle_s=idle_s))
    assert narrow(ps.render([process])).count("  ! holds the GPU, nothing launched for 10 min") == said


@pytest.mark.parametrize(
    ("known_as", "shown"),
    [
        ("docker chat", "chat"),
        ("pod ml/llama-0", "llama-0"),
        ("unit a-very-long-name@instance.service", "a-very-long-na…"),
        ("user \x1b[2J", r"\x1b[2J"),
    ],
)
def test_ps_shows_the_name_that_people_know(known_as: str, shown: str) -> None:
    process = Holder(replace(fakes.processes()[0], known_as=known_as))
    assert f"  {shown}  " in narrow(ps.render([process]))
    assert "0a1b2c3d/" not in narrow(ps.render([process]))
