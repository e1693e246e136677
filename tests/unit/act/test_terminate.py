# SPDX-License-Identifier: Apache-2.0
"""Who is signalled: the accused process, in the accused tenant's cgroup, while it is still accused. Nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.act import terminate
from fairsched.act.terminate import Accused, Terminator
from fairsched.base.process import ProcessId
from fairsched.model import MisbehaviourKind

WaitUntil = Callable[[Callable[[], object], float, str], None]
KIND = MisbehaviourKind.ENDLESS
S = 1_000_000_000
GRACE_NS = 5 * S
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
OBEDIENT = "import signal; print(flush=True); signal.pause()"


class Tenants:
    """Which tenant each process is in; a test moves them."""

    def __init__(self) -> None:
        self.of: dict[int, str | None] = {}

    def __call__(self, pid: int) -> str | None:
        return self.of.get(pid)


@pytest.fixture
def tenants() -> Tenants:
    return Tenants()


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that were sent, in order. They are really sent, but never to init or to us."""
    numbers: list[int] = []

    def send(pidfd: int, number: signal.Signals) -> bool:
        numbers.append(number)
        pid = int(Path(f"/proc/self/fdinfo/{pidfd}").read_text().partition("Pid:")[2].split()[0])
        return pid not in (1, os.getpid(), os.getppid()) and terminate_send(pidfd, number)

    terminate_send = terminate._send
    monkeypatch.setattr(terminate, "_send", send)
    return numbers


@pytest.fixture
def terminator(tenants: Tenants) -> Iterator[Terminator]:
    made = Terminator(tenants)
    yield made
    made.close()


@pytest.fixture
def spawn(tenants: Tenants) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    spawned: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        spawned.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        tenants.of[process.pid] = "bad"
        return process

    yield start
    for process in spawned:
        process.kill()
        process.communicate()


Spawn = Callable[[str], subprocess.Popen[bytes]]


def accuse(process: subprocess.Popen[bytes], tenant: str = "bad") -> Accused:
    owner = ProcessId.of(process.pid)
    assert owner is not None
    return Accused(tenant, KIND, owner)


def test_sigterm_comes_once_and_is_counted(terminator: Terminator, spawn: Spawn) -> None:
    process = spawn(OBEDIENT)
    accused = accuse(process)
    assert terminator.ask(accused, 0)
    assert terminator.is_asked(accused.owner)
    assert not terminator.ask(accused, S)
    assert process.wait(60) == -15
    assert terminator.total == {("bad", KIND): 1}
    (told,) = terminator.book.records
    assert told.event == "termination"
    assert told.fields == {"terminate": "SIGTERM", "tenant": "bad", "pid": process.pid, "kind": "endless"}


def test_a_hold_ends_when_sigkill_was_sent_and_not_before(tenants: Tenants, spawn: Spawn) -> None:
    let_run: list[tuple[str, int]] = []
    terminator = Terminator(tenants, lambda tenant, now_ns: let_run.append((tenant, now_ns)))
    accused = accuse(spawn(STUBBORN))
    terminator.ask(accused, 0)
    terminator.settle({accused.owner}, GRACE_NS - 1, GRACE_NS)
    assert let_run == []
    terminator.settle({accused.owner}, GRACE_NS, GRACE_NS)
    terminator.settle({accused.owner}, GRACE_NS + 1, GRACE_NS)
    assert let_run == [("bad", GRACE_NS)]
    terminator.close()


def test_sigkill_comes_after_the_grace_and_not_before(
    terminator: Terminator, spawn: Spawn, sent: list[int]
) -> None:
    process = spawn(STUBBORN)
    accused = accuse(process)
    assert terminator.ask(accused, 0)
    terminator.settle({accused.owner}, GRACE_NS - 1, GRACE_NS)
    assert sent == [signal.SIGTERM]
    terminator.settle({accused.owner}, GRACE_NS, GRACE_NS)
    assert process.wait(60) == -9
    terminator.settle(set(), GRACE_NS + S, GRACE_NS)
    assert not terminator.is_asked(accused.owner), "what is dead is forgotten"


def test_who_ends_its_work_is_let_off(terminator: Terminator, spawn: Spawn, sent: list[int]) -> None:
    process = spawn(STUBBORN)
    accused = accuse(process)
    terminator.ask(accused, 0)
    terminator.settle(set(), 2 * GRACE_NS, GRACE_NS)
    assert sent == [signal.SIGTERM]
    assert not terminator.is_asked(accused.owner)


def test_who_left_the_cgroup_is_not_killed_there(
    terminator: Terminator, spawn: Spawn, tenants: Tenants, sent: list[int]
) -> None:
    process = spawn(STUBBORN)
    accused = accuse(process)
    terminator.ask(accused, 0)
    for elsewhere in ("chat", None):
        tenants.of[process.pid] = elsewhere
        terminator.settle({accused.owner}, 2 * GRACE_NS, GRACE_NS)
        assert sent == [signal.SIGTERM]


@pytest.mark.parametrize("elsewhere", ["chat", None])
def test_who_is_in_another_cgroup_is_not_asked(
    terminator: Terminator, spawn: Spawn, tenants: Tenants, elsewhere: str | None
) -> None:
    process = spawn(OBEDIENT)
    tenants.of[process.pid] = elsewhere
    assert not terminator.ask(accuse(process), 0)
    assert process.poll() is None
    assert not terminator.total


def test_a_later_process_of_the_same_pid_is_not_asked(terminator: Terminator, spawn: Spawn) -> None:
    process = spawn(OBEDIENT)
    accused = accuse(process)
    earlier = Accused("bad", KIND, ProcessId(process.pid, accused.owner.start_ticks - 1))
    assert not terminator.ask(earlier, 0)
    assert process.poll() is None


def test_neither_init_nor_we_are_ever_asked(
    terminator: Terminator, tenants: Tenants, sent: list[int]
) -> None:
    for pid in (1, os.getpid(), os.getppid()):
        tenants.of[pid] = "bad"
        owner = ProcessId.of(pid)
        assert owner is not None
        assert not terminator.ask(Accused("bad", KIND, owner), 0)
    assert sent == []


def test_who_is_gone_is_not_asked(terminator: Terminator, spawn: Spawn) -> None:
    process = spawn(OBEDIENT)
    accused = accuse(process)
    process.kill()
    process.wait()
    assert not terminator.ask(accused, 0)


@pytest.mark.parametrize("asked", [False, True], ids=["SIGTERM", "SIGKILL"])
def test_who_ends_between_the_check_and_the_signal_leaves_its_pid_alone(
    asked: bool, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the pid may be another's: signals go through the descriptor of the process that was checked."""
    process = spawn(STUBBORN)
    accused = accuse(process)
    is_to_end = not asked
    by_pid: list[int] = []

    def tenant_of(pid: int) -> str:
        """The last question before a signal."""
        if is_to_end and process.returncode is None:
            process.kill()
            process.wait()
            monkeypatch.setattr(os, "kill", lambda pid, number: by_pid.append(pid))
        return "bad"

    terminator = Terminator(tenant_of)
    try:
        assert terminator.ask(accused, 0) is asked
        is_to_end = True
        terminator.settle({accused.owner}, 2 * GRACE_NS, GRACE_NS)
    finally:
        terminator.close()
    assert process.returncode is not None, "it has ended between the two"
    assert by_pid == []
