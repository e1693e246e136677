# SPDX-License-Identifier: Apache-2.0
"""Totals that survive: atomic, never falling, and a damaged file stops nobody."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.base import saver
from fairsched.daemon.ledger import WINDOW_NS, Ledger, StateFile, load_state
from fairsched.model import Confidence, Snapshot, Use
from fairsched.policy import PolicyState

S = 1_000_000_000
NO_POLICY = PolicyState().to_dict()


def snapshot(now_ns: int, used: dict[tuple[str, str], int], interval_ns: int = S // 10) -> Snapshot:
    uses = tuple(Use(tenant, gpu, ns, True, 0, Confidence.HIGH) for (tenant, gpu), ns in used.items())
    return Snapshot(now_ns, interval_ns, uses)


def save_state(path: Path, ledger: Ledger, state: PolicyState) -> None:
    file = StateFile(path, ledger)
    file.save(state)
    file.close()


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 10**9)), max_size=20))
def test_totals_never_fall(ticks: list[dict[str, int]]) -> None:
    ledger, before = Ledger(), dict.fromkeys([("a", "g"), ("b", "g")], 0)
    for number, used in enumerate(ticks):
        ledger.add(snapshot(number * S, {(tenant, "g"): ns for tenant, ns in used.items()}), {"g": 1})
        for key, total in ledger.total_ns.items():
            assert total == before[key] + used.get(key[0], 0)
            before[key] = total
    assert ledger.stranger_total_ns.get("g", 0) == len(ticks)


def test_the_busy_part_counts_everybody_and_strangers_apart() -> None:
    ledger = Ledger()
    for tick in range(1, 11):
        ledger.add(snapshot(tick * S // 10, {("a", "g"): S // 20}), {"g": S // 100})
    assert ledger.busy_ratio("g", S, S) == pytest.approx((0.6, 0.1))
    assert ledger.busy_ratio("other", S, S) == (0.0, 0.0)


def test_what_is_older_than_the_window_does_not_count() -> None:
    ledger = Ledger()
    ledger.add(snapshot(S, {("a", "g"): S // 10}), {})
    assert ledger.busy_ratio("g", S, 3 * S) is None  # not known, which is not idle
    ledger.add(snapshot(3 * S, {}), {})
    assert ledger.busy_ratio("g", S, 3 * S) == (0.0, 0.0)


def test_the_past_is_forgotten_and_the_totals_are_not() -> None:
    ledger = Ledger()
    for tick in range(1000):
        ledger.add(snapshot(tick * S, {("a", "g"): 1}), {})
    assert len(ledger._recent) <= WINDOW_NS // S + 1
    assert ledger.total_ns == {("a", "g"): 1000}


def test_totals_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    ledger = Ledger()
    ledger.total_ns = {("team/chat", "GPU-a"): 12345678901234, ("b", "GPU-b"): 1}
    save_state(path, ledger, PolicyState())
    again = Ledger()
    assert load_state(path, again) == PolicyState()
    assert again.total_ns == ledger.total_ns


def test_no_file_is_a_fresh_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    assert load_state(tmp_path / "state.json", ledger) == PolicyState()
    assert ledger.total_ns == {}
    assert not caplog.records


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        json.dumps({"version": 99, "total_ns": [], "policy": {}}),
        json.dumps({"version": 1, "total_ns": [["a", "g"]], "policy": {}}),
        json.dumps({"version": 1, "total_ns": [["a", "g", "x"]], "policy": {}}),
        json.dumps({"version": 1, "total_ns": [["a", "g", 5]], "policy": {"accounts": [["a"]]}}),
        json.dumps({"version": 1, "total_ns": [["a", "g", float("inf")]], "policy": {}}),
        json.dumps({"version": 1, "total_ns": [], "policy": NO_POLICY, "departed_s": ["a"]}),
        json.dumps({"version": 1, "total_ns": [], "policy": NO_POLICY, "departed_s": {"a": "long"}}),
        "\x00\x01 not text",
    ],
)
def test_a_damaged_file_is_set_aside_and_said(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    ledger = Ledger()
    assert load_state(path, ledger) == PolicyState()
    assert ledger.total_ns == {}
    assert not path.exists()
    assert path.with_suffix(".damaged").read_text() == text
    assert "state.json" in caplog.text


def test_a_file_that_is_not_text_is_damaged_too(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"\xff\xfe\xff")
    assert load_state(path, Ledger()) == PolicyState()
    assert path.with_suffix(".damaged").exists()


def test_a_save_that_fails_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.json"
    ledger = Ledger()
    ledger.total_ns = {("a", "g"): 5}
    save_state(path, ledger, PolicyState())
    before = path.read_text()

    def full(*_args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    ledger.total_ns = {("a", "g"): 9}
    save_state(path, ledger, PolicyState())
    assert "No space left" in caplog.text
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["state.json"]


def test_while_the_disk_is_busy_nobody_waits_and_the_newest_is_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    may_end, written = threading.Event(), list[str]()

    def slow(_path: Path, data: bytes) -> None:
        assert may_end.wait(10)
        written.append(data.decode())

    monkeypatch.setattr(saver, "replace_file", slow)
    ledger = Ledger()
    file = StateFile(path, ledger)
    for total in range(5):
        ledger.total_ns = {("a", "g"): total}
        file.save(PolicyState())
    may_end.set()
    file.close()
    totals = [json.loads(text)["total_ns"][0][2] for text in written]
    assert totals[-1] == 4
    assert len(totals) <= 2
    file.save(PolicyState())
    file.close()
    assert len(written) == len(totals) + 1


def test_a_host_without_room_for_a_thread_keeps_what_it_had_and_saves_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    path = tmp_path / "state.json"
    ledger = Ledger()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        save_state(path, ledger, PolicyState())
    assert "can't start new thread" in caplog.text
    assert not path.exists()
    save_state(path, ledger, PolicyState())
    assert path.exists()
