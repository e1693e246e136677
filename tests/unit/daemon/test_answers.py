# SPDX-License-Identifier: Apache-2.0
"""Who may tell the daemon what: whoever may ask for the status is not therefore the companion."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched.daemon.answers import Answers
from fairsched.errors import ConfigError, ControlError
from fairsched.protocol.events import EventRecord
from fairsched.protocol.listen import Peer


class Companion:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.findings: list[Mapping[str, Any]] = []

    def told(self, finding: Mapping[str, Any], now_ns: int) -> None:
        if "faults" not in finding:
            raise TypeError("faults must be a list")
        self.findings.append(finding)


@pytest.fixture
def companion() -> Companion:
    return Companion()


@pytest.fixture
def answers(companion: Companion) -> Answers:
    parts = cast(Any, SimpleNamespace(companion=companion))
    return Answers(cast(Any, None), lambda: parts, lambda: None)


def test_a_finding_is_taken_from_root_and_from_whom_the_daemon_runs_as(
    answers: Answers, companion: Companion
) -> None:
    for uid in (0, os.geteuid()):
        answers.tell({"faults": []}, Peer(7, uid, frozenset({uid})))
    assert companion.findings == [{"faults": []}] * 2


class Refused:
    """Settings whose file is bad."""

    def reload(self) -> list[str]:
        raise ConfigError("f: tenants.chat.wieght: unknown key", remedy="did you mean 'weight'?")


def test_a_refused_reload_is_told_to_who_asked_and_after_a_signal_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken: list[bool] = []
    answers = Answers(cast(Any, Refused()), lambda: cast(Any, None), lambda: taken.append(True))
    with pytest.raises(ConfigError, match="wieght"):
        answers.reload(Peer(7, 0, frozenset()))
    assert caplog.text == ""
    answers.reload_on_signal()
    assert "reload=refused" in caplog.text and "wieght" in caplog.text
    assert taken == []


def test_members_of_the_group_may_ask_but_tell_nothing(answers: Answers, companion: Companion) -> None:
    with pytest.raises(ControlError, match="uid 12345 is not the companion"):
        answers.tell({"faults": []}, Peer(7, 12345, frozenset({0, os.getegid()})))
    assert companion.findings == []


def test_what_is_no_finding_is_an_error_of_whoever_tells_it(answers: Answers, companion: Companion) -> None:
    with pytest.raises(ControlError, match="no finding"):
        answers.tell({}, Peer(7, 0, frozenset()))


def test_what_was_done_to_tenants_besides_holds_is_told_with_the_decisions() -> None:
    def book(*moments: int) -> SimpleNamespace:
        records = deque((EventRecord(ns, 0.0, "vram", {"tenant": "a"}) for ns in moments), maxlen=2)
        return SimpleNamespace(records=records)

    parts = SimpleNamespace(
        applier=SimpleNamespace(records=deque(maxlen=2)),
        vram=SimpleNamespace(book=book(30), terminator=SimpleNamespace(book=book(9))),
        misbehaviour=SimpleNamespace(terminator=SimpleNamespace()),
    )
    answers = Answers(cast(Any, None), lambda: cast(Any, parts), lambda: None)
    for moments, told, is_gapless in (((20,), [20, 30], True), ((20, 40), [20, 30, 40], False)):
        parts.misbehaviour.terminator.book = book(*moments)
        answer = answers.decisions(10)
        assert [one.t_ns for one in answer["events"]] == told
        assert answer["is_gapless"] is is_gapless
