# SPDX-License-Identifier: Apache-2.0
"""The hostile programs' command lines: what is asked for is what is run, and asking does nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import trick_company, tricks
from benchmarks.fair.scenario import Load
from benchmarks.trick_company import Company, without_log
from fairsched.simgpu import Workload

LOAD = Path("/somewhere/simload")
WORKLOAD = Load(kernels=7, kernel_us=300.0, contexts=2).workload("libcuda.so.1", seed=42)


@pytest.mark.parametrize("name", tricks.TRICKS)
def test_a_trick_s_command_is_a_function_of_what_it_is_given(name: str) -> None:
    first = tricks.command(name, WORKLOAD, LOAD)
    assert first == tricks.command(name, replace(WORKLOAD), LOAD)
    assert first != tricks.command(name, replace(WORKLOAD, seed=43), LOAD)
    at = first.index("--")
    assert first[at + 1 :] == WORKLOAD.arguments()
    assert first[at - 3 : at] == [name, "--load", str(LOAD)]
    assert Path(first[0]).is_absolute(), "SimHost.popen needs a path"


def test_the_log_is_an_argument_of_the_load() -> None:
    command = tricks.command("move", WORKLOAD, LOAD, Path("/steps/1"))
    assert command[-2:] == ["--log", "/steps/1"]
    arguments = command[command.index("--") + 1 :]
    assert without_log(arguments) == WORKLOAD.arguments()
    assert without_log([*arguments, "--seed", "5"]) == [*WORKLOAD.arguments(), "--seed", "5"]
    assert without_log(WORKLOAD.arguments()) == WORKLOAD.arguments()


def test_an_unknown_trick_is_an_error() -> None:
    with pytest.raises(KeyError):
        tricks.command("rob_a_bank", Workload(), LOAD)


def test_a_wrong_command_line_is_told_every_trick(capsys: pytest.CaptureFixture[str]) -> None:
    assert tricks.main(["rob_a_bank", "--load", "x", "--", "y"]) == 2
    said = capsys.readouterr().err
    assert all(trick.name in said and trick.description in said for trick in tricks.TRICKS.values())


def test_each_private_copy_is_an_inode_of_its_own(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(b"library")
    first = tricks.private_copy(library, tmp_path)
    second = tricks.private_copy(library, tmp_path, "libcompute.so")
    assert first.read_bytes() == second.read_bytes() == b"library"
    assert len({path.stat().st_ino for path in (library, first, second)}) == 3
    assert (first.name, second.name) == ("libcuda.so.1", "libcompute.so")


class HeldOnce:
    """A clock whose third sleep lasts a second longer than asked for, as a hold makes it."""

    def __init__(self) -> None:
        self.now_s, self.sleeps = 0.0, 0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now_s += seconds + (1.0 if self.sleeps == 3 else 0.0)


def test_beats_that_a_hold_has_swallowed_are_not_made_up_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two at once would move a process away and back: between two cgroups, it would stay in one."""
    clock = HeldOnce()
    monkeypatch.setattr(trick_company, "time", clock)
    monkeypatch.setattr(trick_company, "_own_cgroup", lambda: tmp_path)
    beats = Company(LOAD, []).beats(0.05)
    assert [(next(beats), round(clock.now_s, 6)) for _ in range(6)] == [
        (0, 0.0),
        (1, 0.05),
        (2, 0.1),
        (3, 1.15),
        (4, 1.2),
        (5, 1.25),
    ]
