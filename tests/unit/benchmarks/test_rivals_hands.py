# SPDX-License-Identifier: Apache-2.0
"""How the rivals hold a tenant and let it go, on plain directories and processes of our own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rivals.base import Action, RivalError, Tenant
from benchmarks.rivals.hands import Freezer, Hands, HeldLog, Stopper
from tests.support import wait_until


def tenant(leaf: str, cgroup: Path) -> Tenant:
    return Tenant(leaf, str(cgroup), owner=1, weight_ratio=0.5, quota_ratio=None, gpus=(0,))


def start_child() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = start_child()
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def second() -> Iterator[subprocess.Popen[bytes]]:
    process = start_child()
    yield process
    process.kill()
    process.wait()


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] == "T"


def held_lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_sigstop_reaches_child_cgroups_newcomers_and_those_who_continued_themselves(
    tmp_path: Path, child: subprocess.Popen[bytes], second: subprocess.Popen[bytes]
):
    below = tmp_path / "a" / "below"
    below.mkdir(parents=True)
    (tmp_path / "a" / "cgroup.procs").write_text("0\n")
    (below / "cgroup.procs").write_text(f"{child.pid}\n")
    log = tmp_path / "held"
    hands = Stopper([tenant("a", tmp_path / "a")], HeldLog(log))
    hands.act(Action("a", True))
    wait_until(lambda: is_stopped(child), 10, "the process below is stopped")
    (below / "cgroup.procs").write_text(f"{child.pid}\n{second.pid}\n")
    child.send_signal(signal.SIGCONT)
    wait_until(lambda: not is_stopped(child), 10, "it goes on by itself")
    hands.act(Action("a", True))
    wait_until(lambda: is_stopped(child) and is_stopped(second), 10, "both are stopped")
    # One that has left the cgroup meanwhile is let go all the same.
    (below / "cgroup.procs").write_text("")
    hands.act(Action("a", False))
    wait_until(lambda: not is_stopped(child) and not is_stopped(second), 10, "both go on")
    (line,) = held_lines(log)
    assert line["leaf"] == "a"
    assert line["start_ns"] < line["end_ns"]  # type: ignore[operator]


@pytest.mark.parametrize("kind", [Freezer, Stopper])
def test_a_cgroup_that_is_not_there_is_nothing_to_hold(tmp_path: Path, kind: type[Hands]):
    log = tmp_path / "held"
    hands = kind([tenant("a", tmp_path / "gone")], HeldLog(log))
    hands.act(Action("a", True))
    hands.act(Action("a", False))
    hands.let_all_go()
    assert held_lines(log) == []


def frozen(tmp_path: Path, leaf: str) -> str:
    return (tmp_path / leaf / "cgroup.freeze").read_text()[:1]


def test_in_the_end_all_that_are_held_are_thawed_and_the_others_not_touched(tmp_path: Path):
    tenants = []
    for leaf in ("a", "b", "paused"):
        (tmp_path / leaf).mkdir()
        (tmp_path / leaf / "cgroup.freeze").write_text("1" if leaf == "paused" else "0")
        tenants.append(tenant(leaf, tmp_path / leaf))
    log = tmp_path / "held"
    hands = Freezer(tenants, HeldLog(log))
    hands.act(Action("a", True))
    hands.act(Action("b", True))
    assert [frozen(tmp_path, leaf) for leaf in ("a", "b")] == ["1", "1"]
    hands.let_all_go()
    assert [frozen(tmp_path, leaf) for leaf in ("a", "b", "paused")] == ["0", "0", "1"]
    assert {line["leaf"] for line in held_lines(log)} == {"a", "b"}


def test_one_that_cannot_be_thawed_does_not_keep_the_others_held(tmp_path: Path):
    tenants = []
    for leaf in ("a", "b"):
        (tmp_path / leaf).mkdir()
        (tmp_path / leaf / "cgroup.freeze").write_text("0")
        tenants.append(tenant(leaf, tmp_path / leaf))
    hands = Freezer(tenants, HeldLog(tmp_path / "held"))
    hands.act(Action("a", True))
    hands.act(Action("b", True))
    (tmp_path / "a" / "cgroup.freeze").unlink()
    (tmp_path / "a" / "cgroup.freeze").mkdir()  # EISDIR
    with pytest.raises(RivalError, match="a: "):
        hands.let_all_go()
    assert frozen(tmp_path, "b") == "0"
