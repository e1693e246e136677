# SPDX-License-Identifier: Apache-2.0
"""The database: bounded whatever comes, and never a reason to stop."""

from __future__ import annotations

import itertools
import logging
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.companion.__main__ import parts_of
from fairsched.companion.history.part import HistoryPart
from fairsched.companion.history.read import read_past
from fairsched.companion.history.store import open_store
from fairsched.companion.keeper import wishes
from fairsched.companion.part import Moment, Node
from fairsched.config import from_bytes
from fairsched.config.outward import History
from fairsched.errors import ConfigError, FairschedError
from tests.unit.companion.history.days import HOLDS, T0, report, rows_at

MIB = 1 << 20


def bytes_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())


def times_of(path: Path) -> list[int]:
    with sqlite3.connect(path) as db:
        found = [row[0] for row in db.execute("SELECT t FROM node ORDER BY t")]
    db.close()
    return found


def test_it_stays_below_its_bytes_and_keeps_the_newest(tmp_path: Path) -> None:
    store = open_store(tmp_path / "h", keep_s=10**9, max_bytes=MIB)
    largest = 0
    for number in range(200):
        store.write(rows_at(T0 + 10 * number, tenants=60))
        largest = max(largest, bytes_of(tmp_path))
    store.close()
    assert largest <= MIB
    times = times_of(tmp_path / "h")
    assert times[-1] == T0 + 1990
    assert 20 < len(times) < 200, "some are gone, and not nearly all"
    assert times[0] > T0


def test_rows_that_are_too_old_go(tmp_path: Path) -> None:
    store = open_store(tmp_path / "h", keep_s=100, max_bytes=MIB)
    for number in range(50):
        store.write(rows_at(T0 + 10 * number))
    store.close()
    assert times_of(tmp_path / "h") == [T0 + 10 * number for number in range(39, 50)]
    with sqlite3.connect(tmp_path / "h") as db:
        for table in ("gpu", "tenant", "share", "decision"):
            assert db.execute(f"SELECT min(t) FROM {table}").fetchone()[0] == T0 + 390
    db.close()


def test_a_smaller_bound_takes_effect_on_a_file_that_is_there(tmp_path: Path) -> None:
    store = open_store(tmp_path / "h", keep_s=10**9, max_bytes=8 * MIB)
    for number in range(150):
        store.write(rows_at(T0 + 10 * number, tenants=100))
    store.close()
    assert bytes_of(tmp_path) > MIB
    store = open_store(tmp_path / "h", keep_s=10**9, max_bytes=MIB)
    store.write(rows_at(T0 + 4000, tenants=100))
    store.write(rows_at(T0 + 4010, tenants=100))
    store.close()
    assert bytes_of(tmp_path) <= MIB
    assert times_of(tmp_path / "h")[-1] == T0 + 4010


def test_a_restart_goes_on_in_the_same_file_and_a_clock_set_back_is_no_error(tmp_path: Path) -> None:
    for t in (T0, T0 + 10, T0 + 10, T0 - 500):
        store = open_store(tmp_path / "h", keep_s=10**9, max_bytes=MIB)
        store.write(rows_at(t))
        store.close()
    assert times_of(tmp_path / "h") == [T0 - 500, T0, T0 + 10]


def test_the_file_is_for_nobody_else_and_names_are_forgotten_with_their_rows(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = open_store(tmp_path / "h", keep_s=100, max_bytes=MIB)
        store.write(rows_at(T0, tenants=30))
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    store.write(rows_at(T0 + 1000))
    store.forget_names()
    store.write(rows_at(T0 + 1010))
    store.close()
    with sqlite3.connect(tmp_path / "h") as db:
        names = {row[0] for row in db.execute("SELECT text FROM name")}
    db.close()
    assert names == {"chat", "batch", rows_at(T0).gpus[0].gpu}


# ---- the part, and what disks do ----


def test_a_history_alone_is_a_reason_for_a_companion(tmp_path: Path) -> None:
    config = from_bytes(f"state_dir: {tmp_path}\nhistory: {{enabled: true, max_bytes: 2MiB}}\n".encode(), "f")
    assert set(wishes(config)) == {"history", "slis", "log"}
    _, part = parts_of(config, Node(tmp_path / "s"))  # the first measures the service levels
    assert isinstance(part, HistoryPart)
    assert Days(part).go_on(2) == ()
    part.close()
    assert times_of(tmp_path / "history.sqlite") == [T0 + 10, T0 + 20]
    assert wishes(from_bytes(b"tenants: {}", "f")) == {}
    with pytest.raises(ConfigError, match="max_bytes"):
        from_bytes(b"history: {max_bytes: 3KiB}", "f")


def part_of(path: Path, **values: int) -> HistoryPart:
    return HistoryPart(path, History(enabled=True, interval_s=10, **values))


class Days:
    """Hands a part one interval after the other."""

    def __init__(self, part: HistoryPart) -> None:
        self.part = part
        self.second = 0

    def go_on(self, intervals: int = 1) -> tuple[str, ...]:
        """The faults after so many intervals."""
        finding = None
        for _ in range(intervals * 5 + (self.second == 0)):
            finding = self.part.take(Moment(report(self.second), HOLDS))
            self.second += 2
        return () if finding is None else tuple(finding.faults)


def test_the_part_writes_a_row_an_interval(tmp_path: Path) -> None:
    part = part_of(tmp_path / "h")
    assert part.interval_s == 2.0
    assert part.wants_decisions
    assert Days(part).go_on(3) == ()
    part.close()
    assert times_of(tmp_path / "h") == [T0 + 10, T0 + 20, T0 + 30]


@pytest.mark.parametrize(
    "damage",
    [b"", b"not a database at all " * 400, b"SQLite format 3\0" + b"\xff" * 8000],
    ids=["empty", "text", "half"],
)
def test_a_damaged_file_is_set_aside_and_another_begun(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "h").write_bytes(damage)
    (tmp_path / "h-wal").write_bytes(b"of a writer that was killed")
    part = part_of(tmp_path / "h")
    assert Days(part).go_on(2) == ()
    part.close()
    assert times_of(tmp_path / "h") == [T0 + 10, T0 + 20]
    if damage:
        assert (tmp_path / "h.damaged").read_bytes() == damage
        assert "kept_as" in caplog.text
        assert sorted(file.name for file in tmp_path.iterdir()) == ["h", "h.damaged"]


def test_a_file_that_is_damaged_while_it_is_written_is_set_aside_too(tmp_path: Path) -> None:
    part = part_of(tmp_path / "h")
    days = Days(part)
    days.go_on(3)
    part.close()
    whole = (tmp_path / "h").read_bytes()
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"h{suffix}").write_bytes(b"of a writer that was killed")
    (tmp_path / "h").write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    assert days.go_on(2) == ()
    part.close()
    assert times_of(tmp_path / "h") == [T0 + 40, T0 + 50]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["h", "h.damaged"]


def test_tables_of_another_version_are_set_aside(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "h") as db:
        db.executescript("CREATE TABLE node (t INTEGER); PRAGMA user_version=99;")
    db.close()
    part = part_of(tmp_path / "h")
    assert Days(part).go_on(1) == ()
    part.close()
    assert (tmp_path / "h.damaged").exists()


def test_a_file_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    part = part_of(tmp_path / "h")
    days = Days(part)
    days.go_on(1)
    for file in tmp_path.iterdir():
        file.unlink()
    assert days.go_on(1) == ()
    part.close()
    assert times_of(tmp_path / "h") == [T0 + 20]


@contextmanager
def full_disk(free_bytes: int) -> Iterator[None]:
    """No file may grow beyond that: to SQLite a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_said_and_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    part = part_of(tmp_path / "h")
    days = Days(part)
    assert days.go_on(1) == ()
    with full_disk(0):
        faults = [days.go_on(1) for _ in range(3)]
    assert all("history is not written" in fault for (fault,) in faults)
    assert caplog.text.count("history=") == 1, "said once, not at every interval"
    assert days.go_on(1) == ()
    assert "written_again" in caplog.text
    part.close()
    assert times_of(tmp_path / "h") == [T0 + 10, T0 + 50], (
        "what could not be written is missing, and nothing else"
    )


def test_a_directory_that_cannot_be_is_said_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / "away").write_text("a file")
    part = part_of(tmp_path / "away" / "h")
    days = Days(part)
    assert days.go_on(1)
    (tmp_path / "away").unlink()
    assert days.go_on(1) == ()
    part.close()


def test_a_reader_does_not_keep_the_writer_from_writing(tmp_path: Path) -> None:
    part = part_of(tmp_path / "h")
    days = Days(part)
    days.go_on(2)
    reader = sqlite3.connect(tmp_path / "h")
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM node").fetchone() == (2,)
    assert days.go_on(3) == ()
    assert reader.execute("SELECT count(*) FROM node").fetchone() == (2,), "and it sees one moment"
    reader.close()
    part.close()


# ---- reading ----


@pytest.fixture
def day(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "h", keep_s=10**9, max_bytes=16 * MIB)
    for number in range(1, 31):
        if number not in range(12, 18):  # the daemon was away
            store.write(rows_at(T0 + 10 * number))
    store.close()
    return tmp_path / "h"


def test_the_past_is_read_as_series_and_totals(day: Path) -> None:
    past = read_past(day, T0, T0 + 300)
    assert (past.begin_s, past.end_s, past.on_record_s) == (T0, T0 + 300, 240)
    chat = past.used[("chat", rows_at(T0).gpus[0].gpu)]
    assert len(chat) == 24
    assert max(later - earlier for (earlier, _), (later, _) in itertools.pairwise(chat)) > past.gap_s
    totals = {total.name: total for total in past.totals}
    total, batch = totals["chat"], totals["batch"]
    assert total.weight == 2
    assert total.gpu_time_s == pytest.approx(120.0)
    assert total.used_ratio == pytest.approx(0.5)
    assert batch.holds == 48, "three in each interval, one of which failed"
    assert sum(value or 0 for _, value in past.holds["over_entitlement"]) == 72


def test_a_long_past_has_few_points_and_a_short_one_begins_where_it_begins(day: Path) -> None:
    past = read_past(day, T0 - 6 * 86400, T0 + 300)
    assert past.begin_s == T0, "not six days of nothing"
    long = read_past(day, T0, T0 + 240 * 100)
    assert len(next(iter(long.used.values()))) == 4, "100 s each"


def test_what_cannot_be_read_says_what_to_do(tmp_path: Path, day: Path) -> None:
    cases = {
        tmp_path / "none": "history.enabled",
        day: "--since",
    }
    for path, remedy in cases.items():
        with pytest.raises(FairschedError) as caught:
            read_past(path, T0 + 9000, T0 + 9999)
        assert remedy in (caught.value.remedy or "")
    day.write_bytes(b"no database " * 999)
    with pytest.raises(FairschedError, match="not a database"):
        read_past(day, T0, T0 + 300)
    sqlite3.connect(tmp_path / "other").executescript("CREATE TABLE x (y); PRAGMA user_version=9;")
    with pytest.raises(FairschedError, match="version 9"):
        read_past(tmp_path / "other", T0, T0 + 1)


def test_a_name_that_is_no_text_loses_no_interval(tmp_path: Path) -> None:
    store = open_store(tmp_path / "h", keep_s=100, max_bytes=MIB)
    rows = rows_at(T0, tenants=2)
    store.write(replace(rows, tenants=(*rows.tenants, replace(rows.tenants[0], tenant="team/\udcff"))))
    store.close()
    with sqlite3.connect(tmp_path / "h") as db:
        names = {
            text for (text,) in db.execute("SELECT text FROM name JOIN tenant ON name.id = tenant.tenant")
        }
    db.close()
    assert names == {*(row.tenant for row in rows.tenants), r"team/\xff"}


def test_on_a_first_start_it_makes_the_directory_that_the_daemon_will_use(tmp_path: Path) -> None:
    store = open_store(tmp_path / "lib" / "fairsched" / "h", keep_s=100, max_bytes=MIB)
    store.write(rows_at(T0))
    store.close()
    assert times_of(tmp_path / "lib" / "fairsched" / "h") == [T0]
