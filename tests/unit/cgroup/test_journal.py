# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup.journal import Corrupt, Entry, Journal
from fairsched.errors import KernelRefused
from tests.support import FakeTree

SECOND_NS = 1_000_000_000

EntryOf = Callable[..., Entry]


@pytest.fixture
def entry(fake: FakeTree, entry_of: EntryOf) -> Entry:
    with fake.make("a") as ref:
        return entry_of(ref)


def test_entry_comes_back_as_it_was_written(journal: Journal, entry: Entry) -> None:
    journal.write(entry)
    assert journal.entries() == [entry]
    assert journal.has(entry.name)
    journal.remove(entry.name)
    journal.remove(entry.name)
    assert journal.entries() == []
    assert journal.load(entry.name) is None


def test_half_written_file_is_not_shown(journal: Journal, entry: Entry) -> None:
    Path(journal.directory, entry.name + ".tmp").write_text('{"cgroup')
    assert journal.entries() == []


def test_ending_an_old_hold_cannot_delete_a_newer_one(journal: Journal, entry: Entry) -> None:
    newer = dataclasses.replace(entry, since_ns=entry.since_ns + 1)
    journal.write(entry)
    journal.write(newer)
    journal.remove(entry.name)
    assert journal.entries() == [newer]


def damaged(entry: Entry, **fields: object) -> str:
    return json.dumps({**vars(entry), "daemon": vars(entry.daemon), **fields})


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda entry: "", id="empty"),
        pytest.param(lambda entry: damaged(entry)[:-20], id="truncated"),
        pytest.param(lambda entry: "\x00\x01garbage", id="garbage"),
        pytest.param(lambda entry: "[" * 5000, id="deeply-nested"),
        pytest.param(lambda entry: "[]", id="not-an-object"),
        pytest.param(lambda entry: damaged(entry, extra=1), id="unknown-field"),
        pytest.param(lambda entry: damaged(entry, deadline_ns="soon"), id="text-for-a-number"),
        pytest.param(lambda entry: damaged(entry, deadline_ns=True), id="bool-for-a-number"),
        pytest.param(lambda entry: damaged(entry, path=7), id="number-for-a-text"),
        pytest.param(lambda entry: damaged(entry, path="/../../etc"), id="path-that-climbs"),
        pytest.param(lambda entry: damaged(entry, v1_mount="/../etc"), id="mount-that-climbs"),
        pytest.param(lambda entry: damaged(entry, groups=[[1, "/../etc"]]), id="group-that-climbs"),
        pytest.param(lambda entry: damaged(entry, groups=[["1", "/a"]]), id="text-for-a-group"),
        pytest.param(lambda entry: damaged(entry, groups=[[1]]), id="half-a-group"),
        pytest.param(lambda entry: damaged(entry, brake="hand"), id="unknown-brake"),
        pytest.param(lambda entry: damaged(entry, version=99), id="newer-version"),
        pytest.param(lambda entry: damaged(entry, cgroup_id=1), id="another-cgroup-than-its-name"),
        pytest.param(lambda entry: damaged(entry, daemon=None), id="no-daemon"),
    ],
)
def test_damaged_file_is_data_and_the_others_are_read(
    journal: Journal, entry: Entry, damage: Callable[[Entry], str]
) -> None:
    whole = dataclasses.replace(entry, since_ns=entry.since_ns + 1)
    journal.write(whole)
    Path(journal.directory, entry.name).write_text(damage(entry))
    first, second = journal.entries()
    assert isinstance(first, Corrupt)
    assert first.cgroup_id == entry.cgroup_id
    assert second == whole


def test_link_and_directory_in_the_journal_are_corrupt(journal: Journal, entry: Entry) -> None:
    os.symlink("/etc/passwd", Path(journal.directory, "1.1"))
    Path(journal.directory, "hello").mkdir()
    found = journal.entries()
    assert all(isinstance(item, Corrupt) for item in found)
    assert [item.cgroup_id for item in found] == [1, None]


def test_a_link_to_a_hold_elsewhere_is_corrupt_too(journal: Journal, entry: Entry, tmp_path: Path) -> None:
    journal.write(entry)
    file, elsewhere = Path(journal.directory, entry.name), tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    (found,) = journal.entries()
    assert isinstance(found, Corrupt)


def test_deleted_journal_is_made_again(journal: Journal, entry: Entry) -> None:
    shutil.rmtree(journal.directory)
    assert journal.is_deleted()
    journal.write(entry)
    assert not journal.is_deleted()
    assert Journal(journal.directory).entries() == [entry]


def test_journal_that_cannot_be_written_says_so(tmp_path: Path, journal: Journal, entry: Entry) -> None:
    shutil.rmtree(journal.directory)
    Path(journal.directory).write_text("a file in the way")
    with pytest.raises(KernelRefused) as caught:
        journal.write(entry)
    assert caught.value.path.startswith(journal.directory)


def test_reused_pid_is_another_process(tmp_path: Path) -> None:
    def stat_with(start_ticks: int, state: str = "S", threads: int = 1) -> None:
        fields = [state, *["0"] * 16, str(threads), "0", str(start_ticks), "0"]
        (tmp_path / "77").mkdir(exist_ok=True)
        (tmp_path / "77/stat").write_text("77 (a (b) c) " + " ".join(fields))

    stat_with(1000)
    owner = ProcessId.of(77, str(tmp_path))
    assert owner == ProcessId(77, 1000)
    assert owner.is_alive(str(tmp_path))
    stat_with(2000)
    assert not owner.is_alive(str(tmp_path))
    stat_with(1000, "Z")
    assert not owner.is_alive(str(tmp_path))
    stat_with(1000, "Z", threads=2)
    assert owner.is_alive(str(tmp_path)), "its first thread has ended, and it has another"
    shutil.rmtree(tmp_path / "77")
    assert not owner.is_alive(str(tmp_path))


def test_the_start_of_a_process_is_told_on_our_clock_and_never_too_late() -> None:
    before_ns = time.monotonic_ns()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        owner = ProcessId.of(child.pid)
        after_ns = time.monotonic_ns()
    assert owner is not None
    assert before_ns - SECOND_NS // os.sysconf("SC_CLK_TCK") <= owner.started_ns <= after_ns


def test_own_process_is_alive_and_a_reaped_child_is_not() -> None:
    assert ProcessId.me().is_alive()
    child = subprocess.Popen(["sleep", "60"])
    owner = ProcessId.of(child.pid)
    assert owner is not None
    child.kill()
    child.wait()
    assert not owner.is_alive()


def test_a_hold_of_the_longest_path_is_read_again_whole(journal: Journal, entry: Entry) -> None:
    """A file that is cut is corrupt, and then nobody but the daemon would ever thaw what it names."""
    longest = dataclasses.replace(entry, path=os.fsdecode(b"/" + b"\xff" * 4094))
    journal.write(longest)
    assert journal.entries() == [longest]
