# SPDX-License-Identifier: Apache-2.0
"""When a guardian is started, when again, and who may be held without one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fairsched.errors import FairschedError
from fairsched.guardian.keeper import GuardianKeeper

S = 1_000_000_000


class Played:
    """A Guardian that comes up unless it is told not to."""

    def __init__(self, _journal_directory: str) -> None:
        self.pid: int | None = None
        self.starts = 0
        self.is_broken = False

    def is_alive(self) -> bool:
        return self.pid is not None

    def start(self, _timeout_s: float) -> None:
        self.pid = None
        self.starts += 1
        if self.is_broken:
            raise FairschedError("the guardian did not start")
        self.pid = self.starts


class Stage:
    def __init__(self, mechanism: str) -> None:
        self.now_ns = 5 * S
        self.keeper = GuardianKeeper(
            mechanism, "/holds", make=cast(Any, self._make), clock_ns=lambda: self.now_ns
        )

    def _make(self, directory: str) -> Played:
        self.guardian = Played(directory)
        return self.guardian

    def look(self, *, is_wanted: bool = True) -> bool:
        """What the daemon does each second; whether a start was tried."""
        is_due = self.keeper.is_due(is_wanted=is_wanted)
        if is_due:
            self.keeper.start()
        return is_due


def test_one_is_started_where_people_may_be_held_and_only_there() -> None:
    stage = Stage("auto")
    assert not stage.look(is_wanted=False)
    assert stage.look()
    assert not stage.look(), "it lives"
    assert not Stage("off").look()


def test_one_that_died_is_replaced_at_once_also_when_nobody_may_be_held_any_more() -> None:
    stage = Stage("auto")
    stage.look()
    stage.guardian.is_alive = lambda: False  # type: ignore[method-assign]
    assert stage.look()
    assert stage.look(is_wanted=False)
    assert stage.keeper.warning is None


@pytest.mark.parametrize(
    ("mechanism", "said"), [("auto", "would stay frozen"), ("required", "nobody is held")]
)
def test_one_that_does_not_start_is_said_and_tried_again_less_and_less_often(
    mechanism: str, said: str
) -> None:
    stage = Stage(mechanism)
    stage.guardian.is_broken = True
    tried = []
    for second in range(200):
        if stage.look():
            tried.append(second)
        assert said in (stage.keeper.warning or "")
        assert stage.keeper.is_lacking == (mechanism == "required")
        stage.now_ns += S
    assert tried == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    stage.guardian.is_broken = False
    stage.now_ns += 60 * S
    assert stage.look()
    assert (stage.keeper.warning, stage.keeper.is_lacking) == (None, False)


def test_the_wait_is_forgotten_when_none_is_wanted() -> None:
    stage = Stage("required")
    stage.guardian.is_broken = True
    stage.look()
    assert not stage.look()
    assert not stage.look(is_wanted=False)
    assert not stage.keeper.is_lacking
    assert stage.look(), "as soon as it is wanted again"


def test_the_daemon_does_not_start_without_one_that_is_required() -> None:
    for mechanism in ("auto", "required"):
        stage = Stage(mechanism)
        stage.guardian.is_broken = True
        if mechanism == "required":
            with pytest.raises(FairschedError):
                stage.keeper.start(is_first=True)
        else:
            assert not stage.keeper.start(is_first=True)
