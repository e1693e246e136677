# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.release import Release, ReleaseKind, release_all
from tests.support import FakeTree

EntryOf = Callable[..., Entry]


def kinds(results: list[Release]) -> list[ReleaseKind]:
    return [result.kind for result in results]


@pytest.fixture
def held(fake: FakeTree, journal: Journal, entry_of: EntryOf) -> Callable[..., Entry]:
    """A cgroup that a daemon held and left behind."""

    def make(path: str, **fields: object) -> Entry:
        with fake.make(path, frozen=True) as ref:
            entry = entry_of(ref, **fields)
        journal.write(entry)
        return entry

    return make


def test_everything_on_record_is_thawed_and_nothing_else(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry]
) -> None:
    held("gpu.slice/a")
    held("gpu.slice/b")
    fake.make("gpu.slice/docker", frozen=True).close()
    results = release_all(journal, fake.mount)
    assert kinds(results) == [ReleaseKind.THAWED] * 2
    assert not fake.is_asked("gpu.slice/a")
    assert not fake.is_asked("gpu.slice/b")
    assert fake.is_asked("gpu.slice/docker")
    assert journal.entries() == []
    assert release_all(journal, fake.mount) == []


def test_cgroup_thawed_meanwhile_is_only_taken_off_the_record(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry]
) -> None:
    held("a")
    fake.write_freeze("a", "0")
    assert kinds(release_all(journal, fake.mount)) == [ReleaseKind.NOT_FROZEN]
    assert journal.entries() == []


def test_entry_of_another_boot_thaws_nothing(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry]
) -> None:
    held("a", boot_id="00000000-0000-0000-0000-000000000000")
    assert kinds(release_all(journal, fake.mount)) == [ReleaseKind.OTHER_BOOT]
    assert fake.is_asked("a")
    assert journal.entries() == []


def test_namesake_of_a_removed_cgroup_is_not_thawed(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry]
) -> None:
    entry = held("gpu.slice/a")
    os.rename(fake.root / "gpu.slice/a", fake.root.parent / "outside")  # its id must not be reused
    with fake.make("gpu.slice/a", frozen=True) as namesake:
        assert namesake.id != entry.cgroup_id
    assert kinds(release_all(journal, fake.mount)) == [ReleaseKind.GONE]
    assert fake.is_asked("gpu.slice/a")
    assert journal.entries() == []


def test_cgroup_is_found_by_id_under_another_path(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry]
) -> None:
    held("gpu.slice/a")
    fake.make("other/deep").close()
    os.rename(fake.root / "gpu.slice/a", fake.root / "other/deep/b")
    (result,) = release_all(journal, fake.mount)
    assert (result.kind, result.path) == (ReleaseKind.THAWED, "/other/deep/b")
    assert not fake.is_asked("other/deep/b")


@pytest.mark.parametrize("text", ["", '{"cgroup_id":', "garbage", "{}"])
def test_broken_entry_is_no_permission_to_thaw_and_stops_nobody(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry], text: str
) -> None:
    held("ours")
    with fake.make("foreign", frozen=True) as foreign:
        Path(journal.directory, f"{foreign.id}.1").write_text(text)
    results = {result.kind: result for result in release_all(journal, fake.mount)}
    assert set(results) == {ReleaseKind.THAWED, ReleaseKind.CORRUPT}
    assert "/foreign is frozen" in results[ReleaseKind.CORRUPT].detail
    assert not fake.is_asked("ours")
    assert fake.is_asked("foreign")
    assert len(journal.entries()) == 1
    fake.write_freeze("foreign", "0")
    release_all(journal, fake.mount)
    assert journal.entries() == []


def test_refusal_fails_alone_and_stays_on_record(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry]
) -> None:
    stuck = held("stuck")
    held("ours")
    fake.freeze_file("stuck").unlink()
    fake.freeze_file("stuck").mkdir()  # even root cannot write a directory
    results = {result.path: result for result in release_all(journal, fake.mount)}
    assert results["/stuck"].kind is ReleaseKind.FAILED
    assert results["/ours"].kind is ReleaseKind.THAWED
    assert not results["/stuck"].is_clean
    assert journal.entries() == [stuck]


def test_filter_keeps_the_holds_of_a_daemon_that_lives(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry]
) -> None:
    held("alive")
    held("dead", daemon=ProcessId(ProcessId.me().pid, 1))  # our pid, but a process that started earlier
    results = {
        result.path: result.kind
        for result in release_all(journal, fake.mount, only=lambda entry: not entry.daemon.is_alive())
    }
    assert results == {"/alive": ReleaseKind.KEPT, "/dead": ReleaseKind.THAWED}
    assert fake.is_asked("alive")


def test_older_entry_of_a_cgroup_held_again_thaws_nothing(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry]
) -> None:
    newer = held("a")
    journal.write(dataclasses.replace(newer, since_ns=1, daemon=ProcessId(1 << 22, 1)))
    results = release_all(journal, fake.mount, only=lambda entry: entry.since_ns == 1)
    assert set(kinds(results)) == {ReleaseKind.NOT_FROZEN, ReleaseKind.KEPT}
    assert fake.is_asked("a")
    assert journal.entries() == [newer]


def test_hold_handed_over_is_left_frozen(
    fake: FakeTree, journal: Journal, held: Callable[..., Entry]
) -> None:
    entry = held("a")
    assert kinds(release_all(journal, fake.mount, handed_over={entry.name})) == [ReleaseKind.HANDED_OVER]
    assert fake.is_asked("a")
    assert journal.entries() == []
