# SPDX-License-Identifier: Apache-2.0
"""From the configuration to a part: when there is one, and what it goes by."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.companion.__main__ import parts_of
from fairsched.companion.guard import LOWERED_FILE
from fairsched.companion.guard.part import GuardPart, LeftPart
from fairsched.companion.keeper import wishes
from fairsched.companion.part import Node
from fairsched.config import Config, from_bytes

LIMIT = "limits: {people: {vram: 20GiB}}"
WINDOW = "maintenance: {driver: {from: '2026-12-24 18:00', until: '2026-12-24 19:00'}}"


def config(directory: Path, guard: str) -> Config:
    places = f"state_dir: {directory}/state\nrun_dir: {directory}/run\n"
    return from_bytes(f"{places}guard: {{{guard}}}\n".encode(), "test.yaml")


@pytest.mark.parametrize(
    ("guard", "is_wanted"),
    [
        (LIMIT, True),
        (WINDOW, True),
        (f"mode: act, {LIMIT}", True),
        (f"mode: 'off', {LIMIT}", False),
        ("mode: act", False),
        ("mode: act, projects: {vision: {users: [alice]}}", False),
    ],
)
def test_there_is_a_part_where_there_is_something_to_keep(
    tmp_path: Path, guard: str, is_wanted: bool
) -> None:
    made = config(tmp_path, guard)
    assert ("guard" in wishes(made)) is is_wanted
    parts = parts_of(made, Node(tmp_path / "s"))
    try:
        assert [isinstance(one, GuardPart) for one in parts if one.name == "guard"] == [True] * is_wanted
    finally:
        for part in parts:
            part.close()


def test_where_nothing_is_kept_any_more_a_part_gives_back_what_is_on_record(tmp_path: Path) -> None:
    made = config(tmp_path, f"mode: 'off', {LIMIT}")
    record = tmp_path / "state" / "guard" / LOWERED_FILE
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    assert "guard" in wishes(made)
    parts = parts_of(made, Node(tmp_path / "s"))
    assert any(isinstance(part, LeftPart) for part in parts)


def test_another_limit_begins_another_companion(tmp_path: Path) -> None:
    assert wishes(config(tmp_path, LIMIT)) != wishes(config(tmp_path, LIMIT.replace("20", "30")))
    assert wishes(config(tmp_path, LIMIT)) != wishes(config(tmp_path, f"mode: act, {LIMIT}"))


def test_how_much_of_the_past_is_kept_and_how_slow_a_hold_is_can_be_said(tmp_path: Path) -> None:
    guard = config(tmp_path, f"{LIMIT}, hold_quota: 10%, tape: {{max_bytes: 1GiB, keep_days: 3}}").guard
    assert (guard.hold_quota, guard.tape.max_bytes, guard.tape.keep_days) == (0.1, 1 << 30, 3)
    usual = config(tmp_path, LIMIT).guard
    assert (usual.hold_quota, usual.tape.max_bytes, usual.tape.keep_days) == (0.05, 256 << 20, 14)
