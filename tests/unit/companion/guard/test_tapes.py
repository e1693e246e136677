# SPDX-License-Identifier: Apache-2.0
"""Tapes of rounds: what was written can be played, and the disk is never filled."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fairsched.companion.guard.tapes import TapeLimits, Tapes
from fairsched.guard.tape import play_files
from tests.unit.companion.guard.made import T_S, moment

DAY_S = 86400.0


def tapes_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.tape"))


def test_what_was_written_is_played_even_while_it_is_written(tmp_path: Path) -> None:
    tapes = Tapes(tmp_path / "guard")
    rounds = [moment(T_S + 10 * number) for number in range(5)]
    for one in rounds:
        tapes.write(one)
    (path,) = tapes_in(tmp_path / "guard")
    assert list(play_files([path])) == rounds
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    tapes.close()


def test_a_day_a_size_and_a_start_begin_a_new_tape(tmp_path: Path) -> None:
    limits = TapeLimits(max_bytes=16 * 500)
    for start in (T_S, T_S + 5):
        tapes = Tapes(tmp_path, limits)
        tapes.write(moment(start))
        tapes.close()
    assert len(tapes_in(tmp_path)) == 2
    tapes = Tapes(tmp_path, limits)
    tapes.write(moment(T_S + 10))
    tapes.write(moment(T_S + DAY_S))
    assert len(tapes_in(tmp_path)) == 4, "another day"
    for number in range(1, 12):
        tapes.write(moment(T_S + DAY_S + number))
    names = tapes_in(tmp_path)
    assert len(names) > 4, "it has its size"
    assert [one.t_s for one in play_files(names)] == [
        T_S,
        T_S + 5,
        T_S + 10,
        *(T_S + DAY_S + number for number in range(12)),
    ]


def test_the_oldest_go_and_what_is_not_ours_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    limits = TapeLimits(max_bytes=16 * 1000)
    (tmp_path / "monday.tape").write_text("x" * 100_000)
    tapes = Tapes(tmp_path, limits)
    for number in range(400):
        tapes.write(moment(T_S + 10 * number))
        ours = [path for path in tapes_in(tmp_path) if path.name != "monday.tape"]
        assert sum(path.stat().st_size for path in ours) <= limits.max_bytes + 500
    assert (tmp_path / "monday.tape").exists()
    played = [one.t_s for one in play_files(ours)]
    assert played[-1] == T_S + 3990 and played[0] > T_S
    assert any(
        "tape=dropped" in record.getMessage() and "why=size" in record.getMessage()
        for record in caplog.records
    )


def test_a_tape_that_is_too_old_goes_whatever_its_size(tmp_path: Path) -> None:
    tapes = Tapes(tmp_path, TapeLimits(keep_s=3 * DAY_S))
    tapes.write(moment(T_S))
    (first,) = tapes_in(tmp_path)
    os.utime(first, (T_S, T_S))
    tapes.write(moment(T_S + 2 * DAY_S))
    assert first.exists()
    tapes.write(moment(T_S + 4 * DAY_S))
    assert not first.exists()


def test_after_a_full_disk_it_goes_on_with_a_new_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tapes = Tapes(tmp_path)
    tapes.write(moment(T_S))

    class Full:
        def write(self, round_: object) -> int:
            assert tapes._file is not None
            tapes._file.write('{"t": 17642')
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tapes, "_recorder", Full())
    with pytest.raises(OSError, match="No space"):
        tapes.write(moment(T_S + 10))
    tapes.write(moment(T_S + 20))
    assert [one.t_s for one in play_files(tapes_in(tmp_path))] == [T_S, T_S + 20]
