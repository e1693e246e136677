# SPDX-License-Identifier: Apache-2.0
"""Who is on which GPU, from partial answers and a made /proc."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup.names import Names
from fairsched.cgroup.path import Mount
from fairsched.daemon.answers import Answers
from fairsched.daemon.processes import NO_LAUNCH_SEEN, Held, Launches, build_processes, read_process
from fairsched.driver.books import DriverUse
from fairsched.gpu.nvml import Gpu
from fairsched.model import ContextWork
from fairsched.protocol.process import ProcessStatus

S = 1_000_000_000
MOUNT = Mount(path="/cg", root="/")
GPUS = (Gpu("GPU-a"), Gpu("GPU-b"))
TREE = cast(
    Any, SimpleNamespace(tenants={"chat": SimpleNamespace(refs={7: SimpleNamespace(path="/gpu.slice/chat")})})
)


def made(
    proc: Path,
    pid: int,
    *,
    cgroup: str = "/gpu.slice/chat",
    ns: str = "",
    command: bytes = b"serve\0-m\0x\0",
    state: str = "S",
) -> None:
    where = proc / str(pid)
    where.mkdir()
    (where / "status").write_text(f"Name:\tserve\nState:\t{state} (sleeping)\nNSpid:\t{pid}{ns}\n")
    (where / "cmdline").write_bytes(command)
    (where / "cgroup").write_text(f"4:memory:/else\n0::{cgroup}\n")


def work(
    pid: int,
    gpu: int = 0,
    charged_ms: int = 5,
    submitted: int = 3,
    is_charged: bool = True,
    last_call_s: int = 0,
) -> ContextWork:
    ns = charged_ms * 1_000_000
    return ContextWork((0, 1), pid, 7, gpu, submitted, 0, False, 0, 0, ns, 0, is_charged, last_call_s * S)


def launches(*works: ContextWork, running: Set[tuple[int, int]] = frozenset()) -> Launches:
    """At second 1000, of a daemon that began to watch at second 100."""
    return Launches(works, running, 100 * S, 1000 * S)


def rows(proc: Path, works: list[ContextWork], *parts: Any) -> list[ProcessStatus]:
    return list(build_processes(launches(*works), *parts, GPUS, TREE, MOUNT, str(proc)))


def test_each_column_comes_from_who_knows_it_best(tmp_path: Path) -> None:
    made(tmp_path, 11, cgroup="/gpu.slice/chat/worker", ns="\t4\t1")
    (row,) = rows(tmp_path, [work(11), work(11, charged_ms=2)], {(11, 0): Held(2, 100)}, {(11, 0): 999})
    assert row == ProcessStatus(
        pid=11,
        gpu="GPU-a",
        tenant="chat",
        cgroup="/gpu.slice/chat/worker",
        namespace_pid=1,
        contexts=2,
        vram_bytes=100,
        gpu_time_s=0.007,
        launches=6,
        command="serve -m x",
    )


def test_nobody_has_used_less_than_nothing(tmp_path: Path) -> None:
    """A tape with such a number was refused whole (fairsched/guard/tape.py)."""
    made(tmp_path, 11)
    (row,) = rows(tmp_path, [work(11, charged_ms=-7)], {}, {})
    assert row.gpu_time_s == 0


def test_a_process_is_known_by_the_name_of_its_container(tmp_path: Path) -> None:
    path = f"/system.slice/docker-{'3f' * 32}.scope"
    made(tmp_path, 11, cgroup=f"{path}/worker")
    made(tmp_path, 12)
    where = tmp_path / f"var/lib/docker/containers/{'3f' * 32}"
    where.mkdir(parents=True)
    (where / "config.v2.json").write_text('{"Name": "/chat"}')
    parts: Any = (launches(work(11), work(12)), {}, {}, GPUS, TREE, MOUNT, str(tmp_path))
    found = build_processes(*parts, names=Names(str(tmp_path)))
    assert {row.pid: row.known_as for row in found} == {11: "docker chat", 12: None}


def test_a_line_for_each_process_and_gpu_that_anybody_names(tmp_path: Path) -> None:
    for pid in (11, 12, 13):
        made(tmp_path, pid, cgroup="/else")
    found = rows(tmp_path, [work(11, 0), work(11, 1)], {(12, 1): Held(1, 5)}, {(13, 0): None})
    assert [(row.pid, row.gpu, row.tenant) for row in found] == [
        (11, "GPU-a", None),
        (13, "GPU-a", None),
        (11, "GPU-b", None),
        (12, "GPU-b", None),
    ]
    assert [row.gpu_time_s for row in found] == [0.005, None, 0.005, None]
    assert [row.vram_bytes for row in found] == [None, None, None, 5]


def test_a_context_that_launches_nothing_that_is_seen_is_said_to(tmp_path: Path) -> None:
    for pid in (11, 12, 13, 14):
        made(tmp_path, pid)
    found = rows(
        tmp_path,
        [work(11), work(14, submitted=0)],
        {(11, 0): Held(1, 0), (12, 0): Held(1, 0), (13, 0): Held(0, 0)},
        {(14, 0): 1},
    )
    assert {row.pid: row.launches for row in found} == {11: 3, 12: 0, 13: None, 14: 0}
    assert {row.pid: row.note for row in found} == {
        11: None,
        12: NO_LAUNCH_SEEN,
        13: None,
        14: NO_LAUNCH_SEEN,
    }


def test_who_holds_a_gpu_and_launches_nothing_is_told_with_the_time_since(tmp_path: Path) -> None:
    """Who works now, whether we see it or NVML does, is not idle; who never launched is, for as long as we looked."""
    for pid in range(11, 18):
        made(tmp_path, pid)
    works = [
        work(11),
        work(12, is_charged=False, last_call_s=400),
        work(12, is_charged=False, last_call_s=340),
        work(13, is_charged=False, last_call_s=400),
        work(13),
        work(14, is_charged=False, submitted=0),
    ]
    held = {(15, 0): Held(1, 100), (16, 0): Held(0, 0), (17, 0): Held(1, 100)}
    seen = launches(*works, running={(17, 0)})
    found = build_processes(seen, held, {}, GPUS, TREE, MOUNT, str(tmp_path))
    assert {row.pid: row.idle_s for row in found} == {
        11: None,
        12: 600.0,
        13: None,
        14: 900.0,
        15: 900.0,
        16: None,
        17: None,
    }


def test_who_called_after_the_moment_that_is_asked_about_is_idle_since_no_time(tmp_path: Path) -> None:
    """A tape with less than none could not be played."""
    made(tmp_path, 11)
    seen = launches(work(11, is_charged=False, last_call_s=1000.5))
    (row,) = build_processes(seen, {}, {}, GPUS, TREE, MOUNT, str(tmp_path))
    assert row.idle_s == 0


def test_a_process_is_not_idle_for_longer_than_it_lives() -> None:
    me = ProcessId.me()
    now_ns = me.started_ns + 7 * S
    parts: Any = ({(me.pid, 0): Held(1, 0)}, {}, GPUS, TREE, MOUNT)
    (row,) = build_processes(Launches((), frozenset(), now_ns - 3600 * S, now_ns), *parts)
    assert row.idle_s == pytest.approx(7.0, abs=0.1)


def test_where_launches_are_not_seen_nobody_is_accused_of_none(tmp_path: Path) -> None:
    made(tmp_path, 11)
    (row,) = build_processes(None, {(11, 0): Held(1, 100)}, {(11, 0): 100}, GPUS, TREE, MOUNT, str(tmp_path))
    assert (row.note, row.idle_s, row.gpu_time_s, row.launches, row.contexts) == (None, None, None, None, 1)


def test_what_a_process_has_is_added_up_over_the_cgroups_it_opened_the_driver_in() -> None:
    """It was moved between two opens: the driver's calls are charged to two cgroups."""
    me = os.getpid()
    uses = (
        DriverUse(7, me, 0, 1, 100),
        DriverUse(8, me, 0, 2, 30),
        DriverUse(8, me, 1, 1, 5),
        DriverUse(8, me, None, 1, 9),
    )
    driver = SimpleNamespace(uses=lambda: uses)
    sensors = SimpleNamespace(account=None, probe=None, gpu_watch=None, driver=driver, gpus=GPUS)
    parts = SimpleNamespace(sensors=sensors, tree=TREE, mount=MOUNT)
    answers = Answers(*cast(Any, (None, lambda: parts, None)))
    assert [(row.gpu, row.contexts, row.vram_bytes) for row in answers.processes()] == [
        ("GPU-a", 3, 130),
        ("GPU-b", 1, 5),
    ]


def test_processes_that_are_gone_are_left_out(tmp_path: Path) -> None:
    made(tmp_path, 12, state="Z")
    assert rows(tmp_path, [work(11), work(12)], {}, {}) == []


def test_a_command_line_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    made(tmp_path, 11, command=b"serve\0\x1b[2J\nfake line\0")
    made(tmp_path, 12, command=b"")
    process, kernel_thread = read_process(11, MOUNT, str(tmp_path)), read_process(12, MOUNT, str(tmp_path))
    assert process is not None
    assert process.command == "serve ?[2J?fake line"
    assert kernel_thread is not None
    assert kernel_thread.command == "[serve]"
    assert kernel_thread.namespace_pid is None


def test_a_process_says_nothing_of_itself_by_its_name(tmp_path: Path) -> None:
    """The kernel escapes a newline and a backslash in it, and nothing else."""
    made(tmp_path, 11, command=b"")
    (tmp_path / "11/status").write_bytes(b"Name:\t\xff\x1b\rNSpid:\t1 7\nState:\tS (sleeping)\n")
    process = read_process(11, MOUNT, str(tmp_path))
    assert process is not None
    assert process.namespace_pid is None
    assert process.command is not None
    assert process.command.isprintable()


def test_a_cgroup_says_nothing_of_others_by_its_name(tmp_path: Path) -> None:
    made(tmp_path, 11)
    (tmp_path / "11/cgroup").write_bytes(b"4:memory:/a\r0::/gpu.slice/chat\n0::/gpu.slice/\xff\r\n")
    process = read_process(11, MOUNT, str(tmp_path))
    assert process is not None
    assert process.cgroup == os.fsdecode(b"/gpu.slice/\xff\r")
