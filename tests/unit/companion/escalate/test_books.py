# SPDX-License-Identifier: Apache-2.0
"""State, audit and desk on a real directory: what survives, what is refused, and what is never done unrecorded."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.companion.escalate import policy
from fairsched.companion.escalate.audit import Audit
from fairsched.companion.escalate.desk import EscalationDesk, GivenUp
from fairsched.companion.escalate.model import Outcome, Result, State, StepInForce
from fairsched.companion.escalate.store import StateDamaged, Store, decode, encode
from tests.unit.companion.escalate.play import LIMITS, START_S
from tests.unit.companion.escalate.reports import order

STATE = State(
    last_s=START_S, rung=1, in_force=(StepInForce(1, "quota", START_S, False, undo={"min": 0.2}),), serial=1
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path / "made" / "for-it")
    assert store.load() == State()
    store.save(STATE)
    assert Store(store.directory).load() == STATE
    assert [path.name for path in store.directory.iterdir()] == ["state.json"], "nothing is left lying about"
    assert store.path.stat().st_mode & 0o077 == 0


@given(
    st.binary(max_size=40)
    | st.sampled_from([b"[]", b"{}", b"null", b'{"version":2}', b'{"version":1,"state":[]}'])
)
def test_a_file_that_cannot_be_understood_is_an_error_and_never_a_new_beginning(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode(raw)


def test_the_error_of_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path.write_bytes(encode(STATE)[:-30])
    with pytest.raises(StateDamaged, match=r"state\.json.*cannot be understood") as caught:
        store.load()
    assert "history" in caught.value.remedy


def test_a_field_of_a_newer_version_is_ignored() -> None:
    document = json.loads(encode(STATE))
    document["state"]["invented_later"] = 1
    assert decode(json.dumps(document).encode()) == STATE


def test_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    one, other = Store(tmp_path), Store(tmp_path)
    assert one.lock()
    with other.locked() as is_ours:
        assert not is_ours
    one.unlock()
    with other.locked() as is_ours:
        assert is_ours and not one.lock()
    assert one.lock()
    one.unlock()


def test_the_audit_keeps_every_entry_in_order(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "made")
    for n in range(5):
        audit.write("note", START_S + n, {"n": n})
    assert [entry["n"] for entry in audit.read()] == [0, 1, 2, 3, 4]
    assert [entry["n"] for entry in audit.read(last=2)] == [3, 4]
    assert audit.read()[0]["time"] == "2023-11-14T22:13:20.000Z"


def test_the_audit_does_not_grow_for_ever(tmp_path: Path) -> None:
    audit = Audit(tmp_path, max_bytes=1000, files=3)
    for n in range(200):
        audit.write("note", START_S, {"n": n})
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3000
    kept = [entry["n"] for entry in audit.read()]
    assert kept == list(range(kept[0], 200)) and len(kept) > 20


def test_half_a_line_of_a_power_cut_costs_that_line_only(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    audit.write("note", START_S, {"n": 1})
    with open(audit.path, "ab") as file:
        file.write(b'{"n": 2, "tex')
    audit.write("note", START_S, {"n": 3})
    assert [entry["n"] for entry in audit.read()] == [1, 3]


def test_a_very_long_text_is_cut_and_that_is_said(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    audit.write(
        "result", START_S, {"detail": "x" * 100_000, "undo": {"y": ["z" * 9] * 9000}, "step": "command"}
    )
    (entry,) = audit.read()
    assert entry["is_cut"] and entry["step"] == "command" and len(json.dumps(entry)) < 8000


class FullDisk(Audit):
    """No space left on the device."""

    def write(self, event: str, at_s: float, entry: Any) -> None:
        raise OSError(28, "No space left on device")


def desk(directory: Path, audit: Audit | None = None) -> EscalationDesk:
    return EscalationDesk(LIMITS, Store(directory), audit or Audit(directory), "a test")


def test_an_order_that_cannot_be_written_down_is_not_begun(tmp_path: Path) -> None:
    books = desk(tmp_path, FullDisk(tmp_path))
    asked = order("quota")
    with pytest.raises(OSError, match="No space"):
        books.begin(policy.by_hand(State(), asked), asked)
    assert books.state.pending is None and not books.store.path.exists()


def test_what_will_be_changed_is_on_the_disk_before_it_is(tmp_path: Path) -> None:
    books, asked = desk(tmp_path), order("evict")
    books.begin(policy.by_hand(State(), asked), asked)
    assert Store(tmp_path).load().pending == asked
    books.announce(asked, {"node": "n"})
    books.check(asked)
    assert Store(tmp_path).load().pending_undo == {"node": "n"}
    books.end(asked, Result(Outcome.DONE, "did it", {"node": "n"}), START_S + 1, 0.5)
    found = Store(tmp_path).load()
    assert found.pending is None and [one.undo for one in found.in_force] == [{"node": "n"}]
    assert [entry["event"] for entry in Audit(tmp_path).read()] == ["order", "result"]
    assert Audit(tmp_path).read()[1]["outcome"] == "done" and Audit(tmp_path).read()[1]["by"] == "a test"


def test_who_was_given_up_may_not_announce_any_more(tmp_path: Path) -> None:
    books, asked = desk(tmp_path), order("evict")
    books.begin(policy.by_hand(State(), asked), asked)
    books.end(asked, Result(Outcome.FAILED, "hangs"), START_S, 1.0)
    with pytest.raises(GivenUp):
        books.announce(asked, {})
    with pytest.raises(GivenUp):
        books.check(asked)


def test_an_order_whose_process_has_died_is_closed_and_taken_back_later(tmp_path: Path) -> None:
    books, asked = desk(tmp_path), order("evict")
    books.begin(policy.by_hand(replace(State(), rung=1), asked), asked)
    books.announce(asked, {"node": "n"})
    later = desk(tmp_path)
    later.refresh(START_S + 100)
    assert later.state.pending is None
    assert [one.undo for one in later.state.in_force] == [{"node": "n"}]
    last = Audit(tmp_path).read()[-1]
    assert last["outcome"] == "failed" and "interrupted" in last["detail"]
    assert Store(tmp_path).load() == later.state


def test_what_others_saved_is_taken_in_and_what_nobody_saved_is_not_read_again(tmp_path: Path) -> None:
    books, other = desk(tmp_path), desk(tmp_path)
    books.refresh(START_S)
    other.refresh(START_S)
    asked = order("quota")
    other.begin(policy.by_hand(other.state, asked), asked)
    other.end(asked, Result(Outcome.DONE, "did it", {}), START_S, 1.0)
    books.refresh(START_S)
    assert books.state == other.state and len(books.state.in_force) == 1
    os.chmod(books.store.path, 0o600)
    books.state = replace(books.state, clear_for_s=5.0)
    books.refresh(START_S)
    assert books.state.clear_for_s == 5.0
