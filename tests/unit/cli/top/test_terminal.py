# SPDX-License-Identifier: Apache-2.0
"""`fairsched top` on a terminal: keys, sizes, every way out, and a daemon that comes and goes."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairsched.cli import cli
from fairsched.protocol.status import StatusReport
from tests.unit.cli.top.pictures import crowd
from tests.unit.cli.top.pty_of import ENTER, LEAVE, OnTerminal
from tests.unit.protocol.fakes import FakeDaemon, serving

COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|38;|9[0-7]|48;)[0-9;]*m")


class Crowd(FakeDaemon):
    """Forty tenants."""

    def status(self) -> StatusReport:
        return crowd(40)


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRSCHED_SOCKET", str(tmp_path / "s"))
    return tmp_path / "s"


@pytest.fixture
def daemon(socket_path: Path) -> Iterator[None]:
    with serving(socket_path, Crowd()):
        yield


def is_restored(terminal: OnTerminal) -> bool:
    """The last thing it said is that it goes, and nothing of it is left."""
    tail = terminal.output[terminal.output.rindex(ENTER) :]
    return (
        terminal.is_as_before() and tail.count(LEAVE) == 1 and tail.rindex("\x1b[?25h") < tail.rindex(LEAVE)
    )


@pytest.mark.usefixtures("daemon")
def test_keys_sort_filter_scroll_pause_help_and_quit() -> None:
    with OnTerminal("top", "--interval", "0.2") as terminal:
        assert terminal.wait_for("t039").index("t039") < terminal.screen().index("t038")
        assert "1-20 of 40 by lag" in terminal.screen() or "1-21 of 40 by lag" in terminal.screen()
        assert not terminal.is_as_before(), "keys come one by one, unseen"
        terminal.type("\x1b[F")
        terminal.wait_for("t000")
        terminal.type("g")
        terminal.wait_for("t039")
        terminal.type("n")
        terminal.wait_for("by name")
        assert "t000" in terminal.screen()
        terminal.type("/t03\r")
        terminal.wait_for("of 40, filter 't03'")
        assert "t029" not in terminal.screen()
        terminal.type("\x1b")
        terminal.wait_for("filter 't03'", is_absent=True)
        terminal.type(" ")
        terminal.wait_for("PAUSED")
        terminal.type("?")
        terminal.wait_for("any key leaves it")
        terminal.type("x")
        terminal.wait_for("any key leaves it", is_absent=True)
        terminal.type("q")
        assert terminal.ended() == 0
        assert is_restored(terminal)
        assert terminal.output.count("\x1b[2J") == 1, "cleared once, at the beginning, and never again"


@pytest.mark.usefixtures("daemon")
def test_a_new_size_is_drawn_at_once() -> None:
    with OnTerminal("top", "--interval", "600") as terminal:
        terminal.wait_for("t039")
        assert len(terminal.frames[-1]) == 24
        for width, height in ((120, 40), (60, 10), (80, 24)):
            terminal.resize(width, height)
            terminal.wait_until(lambda: len(terminal.frames[-1]) == height, f"{height} lines")  # noqa: B023
            assert max(len(line) for line in terminal.frames[-1]) <= width
        terminal.type("q")
        assert terminal.ended() == 0


BROKEN = """
import fairsched.cli.top.live as live
draw, calls = live.draw, []
def draw_twice(*arguments):
    calls.append(1)
    if len(calls) > 2:
        raise RuntimeError("boom")
    return draw(*arguments)
live.draw = draw_twice
"""


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("way", ["ctrl-c", "SIGINT", "SIGTERM", "SIGHUP", "exception"])
def test_the_terminal_is_put_back_on_every_way_out(way: str) -> None:
    with OnTerminal("top", "--interval", "0.2", before=BROKEN if way == "exception" else "") as terminal:
        terminal.wait_for("t039")
        if way == "ctrl-c":
            terminal.type("\x03")
        elif way == "exception":
            terminal.type("n")  # one more frame
        else:
            os.kill(terminal.process.pid, getattr(signal, way))
        status = {"ctrl-c": 130, "SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "exception": 1}[way]
        assert terminal.ended() == status
        assert is_restored(terminal), terminal.output[-200:]
        assert ("boom" in terminal.errors()) is (way == "exception"), "an error is seen, after the picture"


@pytest.mark.usefixtures("daemon")
def test_a_signal_that_is_ignored_stays_ignored() -> None:
    ignore = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    with OnTerminal("top", "--interval", "0.2", before=ignore) as terminal:
        terminal.wait_for("t039")
        os.kill(terminal.process.pid, signal.SIGHUP)
        terminal.type("n")
        terminal.wait_for("by name")
        terminal.type("q")
        assert terminal.ended() == 0


def test_a_daemon_that_goes_and_comes_back_is_said_and_seen(socket_path: Path) -> None:
    with OnTerminal("top", "--interval", "0.2") as terminal:
        terminal.wait_for("trying again: the fairsched daemon is not running")
        with serving(socket_path, Crowd()):
            terminal.wait_for("t039")
            assert "trying again" not in terminal.screen()
        terminal.wait_for("trying again: the fairsched daemon is not running")
        assert re.search(r"as of \d\d:\d\d:\d\d", terminal.screen())
        assert "t039" in terminal.screen(), "what was known stays"
        with serving(socket_path, Crowd()):
            terminal.wait_for("trying again", is_absent=True)
        terminal.type("q")
        assert terminal.ended() == 0
        assert is_restored(terminal)


def test_keys_work_while_the_daemon_hangs(socket_path: Path) -> None:
    class Hanging(Crowd):
        asked_often = 0

        def status(self) -> StatusReport:
            self.asked_often += 1
            if self.asked_often > 1:
                is_over.wait(60)
            return super().status()

    is_over = threading.Event()
    with serving(socket_path, Hanging()), OnTerminal("top", "--interval", "0.2") as terminal:
        terminal.wait_for("t039")
        terminal.type("n")
        terminal.wait_for("by name")
        terminal.wait_for("did not answer within 2 s")
        terminal.type("q")
        assert terminal.ended() == 0
        is_over.set()


@pytest.mark.usefixtures("daemon")
def test_no_color_means_no_colour_and_a_dumb_terminal_gets_no_escape() -> None:
    with OnTerminal("top", NO_COLOR="1") as terminal:
        terminal.wait_for("t039")
        assert not COLOUR.search(terminal.output)
        terminal.type("q")
        assert terminal.ended() == 0
    with OnTerminal("top", NO_COLOR="-") as terminal:
        terminal.wait_for("t039")
        assert COLOUR.search(terminal.output), "the search above can find something"
        terminal.type("q")
        assert terminal.ended() == 0
    with OnTerminal("top", "--interval", "0.2", TERM="dumb") as terminal:
        terminal.wait_until(lambda: "t000" in terminal.output, "a picture comes")
        terminal.output = ""
        terminal.wait_until(lambda: "t000" in terminal.output, "a picture comes")
        assert "\x1b" not in terminal.output
        terminal.type("\x03")
        assert terminal.ended() == 130


def ask(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, ["top", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.usefixtures("daemon")
def test_once_and_a_pipe_get_one_picture_of_all_tenants() -> None:
    for arguments in (["--once"], []):
        lines = ask(*arguments).splitlines()
        assert all(len(line) <= 80 for line in lines)
        assert [line[:4] for line in lines if line.startswith("t")] == [
            f"t{n:03d}" for n in reversed(range(40))
        ]
        assert "\x1b" not in "".join(lines)


@pytest.mark.usefixtures("daemon")
def test_json_has_the_rows_sorted_and_filtered() -> None:
    document = json.loads(ask("--json", "--sort", "name", "--filter", "t01"))
    assert [row["name"] for row in document["tenants"]] == [f"t01{n}" for n in range(10)]
    assert document["tenants"][0]["lag_ms"] == -10.0
    assert document["gpus"][0]["busy_ratio"] == 0.994


def test_once_without_a_daemon_says_how_to_start_it(socket_path: Path) -> None:
    from fairsched.errors import ControlError

    with pytest.raises(ControlError, match="not running") as caught:
        CliRunner().invoke(cli, ["top", "--once"], catch_exceptions=False)
    assert "start it" in (caught.value.remedy or "")
