# SPDX-License-Identifier: Apache-2.0
"""Tenants name their cgroups, processes and files as they like: in no UTF-8, and in what steers a terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.node.daemon.site import DECODE, GREEDY, PATIENCE_S, Site, is_asked, is_running, logged
from tests.support import wait_until

NAME = os.fsdecode(b"\xff\x1b[2J\r0::")
TENANT = f"team/{NAME}"
"""As a path; the tenant's name is another one."""
COMM = os.fsdecode(b"\xff\n\rNSpid:\t1")
ON_JOURNAL = (
    "import os; it = os.fstat(2); os.environ['JOURNAL_STREAM'] = f'{it.st_dev}:{it.st_ino}'; "
    "from fairsched.cli import main; main()"
)
"""The daemon as systemd starts it: a decision is an entry with fields."""
MAP = """
import mmap, signal, sys
open("/proc/self/comm", "wb").write(b"\\xff\\n")
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
print(flush=True)
signal.pause()
"""


@contextlib.contextmanager
def mapping(site: Site, path: Path) -> Iterator[None]:
    """A process of the tenant that calls itself something and has a file mapped."""
    path.write_bytes(b"x")
    process = subprocess.Popen([sys.executable, "-c", MAP, str(path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        (site.cgroup(TENANT) / "cgroup.procs").write_text(str(process.pid))
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def odd(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A tenant with such names, and one that competes with it."""
    site.command = [sys.executable, "-c", ON_JOURNAL]
    children = {"children": {"other": {}}, "class": "batch"}
    site.configure({"chat": {"weight": 4}, "team": children}, history={"enabled": True})
    site.make_cgroup(TENANT)
    with mapping(site, tmp_path / os.fsdecode(b"a\r\xff")):
        site.start()
        site.attach()
        site.spawn("chat", DECODE)
        parts = site.host._parts
        load = tmp_path / COMM
        shutil.copy(parts.load, load)
        with monkeypatch.context() as patch:
            # a process is called as the file of its program
            patch.setattr(site.host, "_built", replace(parts, load=load))
            site.spawn(TENANT, GREEDY)
        yield site


def test_names_that_are_no_text_hurt_nobody(odd: Site) -> None:
    odd.wait_held(TENANT)
    (name,) = (one["name"] for one in odd.status()["tenants"] if one["name"].startswith("team/\\xff"))
    for number in range(2):
        seen = len(odd.decisions(name))
        wait_until(
            lambda seen=seen: len(odd.decisions(name)) > seen, PATIENCE_S, f"it is held again, {number}"
        )
    for arguments in (["status", "--full"], ["ps"], ["explain", name], ["top", "--once"], ["events"]):
        done = odd.cli(*arguments, "--config", str(odd.config_path))
        assert done.returncode == 0, done.stderr
        assert all(line.isprintable() for line in done.stdout.split("\n")), done.stdout
    assert "\\xff" in odd.cli("status", "--config", str(odd.config_path)).stdout
    pids = [row["pid"] for row in odd.ask("processes") if row["tenant"] == name]
    assert pids == [odd.workers[TENANT][0].pid]
    assert not [warning for warning in odd.status()["warnings"] if "history" in warning]
    assert is_running(odd.pid)
    assert odd.stop() == 0
    assert not is_asked(odd.cgroup(TENANT))
    assert logged(odd.log(), "decision=hold tenant=.*team/")
    assert logged(odd.log(), "tick failed|exception=|Traceback") == []
    assert all(line.isprintable() for line in odd.log().split("\n"))


def test_a_cgroup_whose_name_is_no_text_is_thawed_after_kill(odd: Site) -> None:
    odd.kill_while_holding(TENANT)
    wait_until(lambda: not is_asked(odd.cgroup(TENANT)), PATIENCE_S, "the guardian thaws it")
    wait_until(lambda: not odd.helpers_left(), PATIENCE_S, "the guardian has said so and left")
    assert logged(odd.log(), r"guardian: thawed cgroup=.*\\xff")
    odd.start()
    odd.wait_held(TENANT)
    assert odd.stop() == 0
    assert not is_asked(odd.cgroup(TENANT))
