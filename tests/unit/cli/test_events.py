# SPDX-License-Identifier: Apache-2.0
"""Decisions as JSON lines: all of them, or what a limit lets through with a count of the rest."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fairsched.cli import cli
from fairsched.protocol.events import (
    EventBook,
    EventRecord,
    EventStream,
    Limiter,
    decision_fields,
    later,
    logfmt,
)
from fairsched.protocol.status import DecisionRecord
from tests.support import end_child
from tests.unit.protocol.fakes import FakeDaemon, hold, serving, thaw

S = 1_000_000_000


def test_a_decision_has_the_fields_of_the_log_and_nothing_that_is_not_known() -> None:
    (document,) = EventStream().documents([hold()])
    assert document == {
        "time": "2023-11-14T22:13:20.125Z",
        "event": "decision",
        "t_ns": S,
        "decision": "hold",
        "tenant": "batch",
        "reason": "over_entitlement",
        "gpu": "GPU-5f2c1a90-1111-2222-3333-444455556666",
        "lag_ms": -62.0,
        "used_ratio": 0.31,
        "entitled_ratio": 0.25,
        "drain_ms": 8.0,
        "threshold_ms": 10.0,
    }
    assert decision_fields(thaw())["held_ms"] == 40.0
    assert decision_fields(hold(is_dry_run=True, error="no"))["dry_run"] is True


def test_a_word_with_blanks_is_quoted_in_the_log() -> None:
    assert (
        logfmt({"a": "x y", "b": 1.5, "c": True, "d": "", "e": 'say "x"'})
        == "a='x y' b=1.5 c=true d='' e='say \"x\"'"
    )


def test_the_limit_lets_the_first_through_and_counts_the_others() -> None:
    limiter = Limiter(per_s=1, burst=2)
    assert [limiter.take("a", 0) for _ in range(4)] == [0, 0, None, None]
    assert limiter.take("b", 0) == 0, "each has a limit of its own"
    assert limiter.take("a", S) == 2
    assert limiter.take("a", S) is None
    assert list(limiter.overdue(S)) == []
    assert list(limiter.overdue(2 * S)) == [("a", 1)]
    assert list(limiter.rest()) == []


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, S)), max_size=80),
    st.floats(0.1, 20),
    st.integers(1, 5),
)
def test_nothing_is_lost_in_the_count(steps: list[tuple[str, int]], per_s: float, burst: int) -> None:
    """Of each tenant: lines + suppressed = decisions; and never more lines than the rate allows."""
    stream, now_ns, seen = EventStream(per_s=per_s, burst=burst), 0, []
    for tenant, step_ns in steps:
        now_ns += step_ns
        seen += stream.documents([replace(hold(now_ns), tenant=tenant)])
    rest = list(stream.counts(now_ns, 0.0, is_last=True))
    for tenant in "abc":
        lines = [one for one in seen if one["tenant"] == tenant]
        kept_back = sum(one.get("suppressed", 0) for one in lines)
        kept_back += sum(one["count"] for one in rest if one["tenant"] == tenant)
        assert len(lines) + kept_back == sum(name == tenant for name, _ in steps)
        assert len(lines) <= burst + now_ns / S * per_s + 1


def test_buckets_of_tenants_that_are_gone_are_forgotten() -> None:
    limiter = Limiter(per_s=10, burst=1)
    for number in range(9000):
        limiter.take(number, number * S)
    assert len(limiter._buckets) <= 4097


class Deciding(FakeDaemon):
    """Remembers decisions until it is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[DecisionRecord] = []
        self.others: list[EventRecord] = []

    def decide(self, tenant: str, ago_s: float = 0.0) -> None:
        t_ns = time.monotonic_ns() - round(ago_s * S)
        self.records.append(replace(hold(t_ns), tenant=tenant, wall_time_s=time.time() - ago_s))

    def decisions(self, since_ns: int) -> Any:
        return {
            "decisions": [one for one in self.records if one.t_ns > since_ns],
            "events": [one for one in self.others if one.t_ns > since_ns],
            "is_gapless": True,
        }


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRSCHED_SOCKET", str(tmp_path / "s"))
    return tmp_path / "s"


def lines_of(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(cli, ["events", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_has_been_decided_is_told_and_it_ends(socket_path: Path) -> None:
    daemon = Deciding()
    daemon.decide("batch", ago_s=300)
    daemon.decide("batch", ago_s=30)
    daemon.decide("chat", ago_s=20)
    with serving(socket_path, daemon):
        assert [one["tenant"] for one in lines_of()] == ["batch", "chat"], "of the last minute"
        assert [one["tenant"] for one in lines_of("--since", "10m")] == ["batch", "batch", "chat"]
        assert [one["tenant"] for one in lines_of("--tenant", "chat", "--since", "10m")] == ["chat"]
        for _ in range(100):
            daemon.decide("batch")
        limited = lines_of("--rate", "2", "--since", "10s")
        assert len(limited) <= 6
        assert limited[-1]["event"] == "suppressed"
        assert len(limited) - 1 + limited[-1]["count"] == 100
        assert len(lines_of("--rate", "0", "--since", "10s")) == 100


def test_terminations_and_memory_are_told_among_the_decisions_in_their_order(socket_path: Path) -> None:
    daemon = Deciding()
    book = EventBook(logging.getLogger("fairsched.test"), "termination")
    with serving(socket_path, daemon):
        daemon.decide("bad", ago_s=5)
        book.tell(logging.INFO, terminate="SIGTERM", tenant="bad", pid=7, kind="endless")
        daemon.others += [*book.records, replace(book.records[0], fields={"tenant": "chat", "vram": "over"})]
        daemon.decide("bad")
        told = lines_of("--tenant", "bad", "--rate", "0")
    assert [one["event"] for one in told] == ["decision", "termination", "decision"]
    assert told[1].keys() == {"time", "event", "t_ns", "terminate", "tenant", "pid", "kind"}
    assert (told[1]["terminate"], told[1]["pid"], told[1]["kind"]) == ("SIGTERM", 7, "endless")


def test_a_book_has_the_last_events_and_says_when_it_has_forgotten_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    book = EventBook(logging.getLogger("fairsched.test"), "vram")
    with caplog.at_level(logging.INFO, "fairsched.test"):
        book.tell(logging.INFO, vram="over", tenant="a b")
    assert caplog.messages == ["vram=over tenant='a b'"]
    assert caplog.records[0].fields == {"vram": "over", "tenant": "a b"}  # type: ignore[attr-defined]
    assert later(book.records, 0) == ([*book.records], True)
    for _ in range(book.records.maxlen or 0):
        book.tell(logging.DEBUG, vram="over", tenant="a")
    assert later(book.records, 0)[1] is False
    assert later(book.records, book.records[0].t_ns)[1] is True


class Following:
    """``fairsched events -f`` in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from fairsched.cli import main; main()", "events", "-f"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ},
        )
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        out, err = self.process.stdout, self.process.stderr
        self._readers = [
            threading.Thread(target=lambda: self.lines.extend(map(json.loads, out)), daemon=True),
            threading.Thread(target=lambda: self.errors.extend(err), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def end(self, number: int = signal.SIGINT) -> int:
        try:
            return end_child(self.process, number)
        finally:
            for reader in self._readers:
                reader.join()


def test_following_goes_on_across_a_restart_of_the_daemon(
    socket_path: Path, wait_until: Callable[..., None]
) -> None:
    first = Deciding()
    with serving(socket_path, first):
        following = Following()
        try:

            def is_following() -> bool:
                first.decide("first")
                return bool(following.lines)

            wait_until(is_following, 30, "it follows")
            first.records.clear()
            count = len(following.lines)
            first.decide("once")
            wait_until(lambda: len(following.lines) > count, 30, "the next one comes")
            first.decide("marker")
            wait_until(lambda: following.lines[-1].get("tenant") == "marker", 30, "and the one after it")
        except BaseException:
            following.end()
            raise
    second = Deciding()
    try:
        wait_until(lambda: following.errors, 30, "it says that the daemon is away")
        second.decide("second", ago_s=-0.5)
        with serving(socket_path, second):
            wait_until(
                lambda: following.lines[-1].get("tenant") == "second", 30, "it goes on with the next daemon"
            )
            status = following.end()
    finally:
        if following.process.poll() is None:
            following.end()
    assert status == 130
    assert [one["event"] for one in following.lines[-2:]] == ["gap", "decision"]
    assert [one["tenant"] for one in following.lines if one["event"] == "decision"].count("once") == 1
    assert len([line for line in following.errors if "waiting for it" in line]) == 1, (
        "said once, not twice a second"
    )
    assert "the daemon is back\n" in following.errors


def test_without_a_daemon_it_says_how_to_start_it(socket_path: Path) -> None:
    result = CliRunner().invoke(cli, ["events"])
    assert result.exit_code == 1
    assert "not running" in str(result.exception)


def test_who_started_it_with_sigint_ignored_ends_it_with_sigterm(
    socket_path: Path, wait_until: Callable[..., None]
) -> None:
    """As a script's ``fairsched events -f > file &``: Ctrl-C is for what is in the foreground."""
    daemon = Deciding()
    with serving(socket_path, daemon):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            following = Following()
        finally:
            signal.signal(signal.SIGINT, before)

        def is_following() -> bool:
            daemon.decide("one")
            return bool(following.lines)

        try:
            wait_until(is_following, 30, "it follows")
            following.process.send_signal(signal.SIGINT)
            count = len(following.lines)
            daemon.decide("two")
            wait_until(lambda: len(following.lines) > count, 30, "it goes on")
        finally:
            status = following.end(signal.SIGTERM)
    assert status == -signal.SIGTERM
