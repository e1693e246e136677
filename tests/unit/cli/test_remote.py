# SPDX-License-Identifier: Apache-2.0
"""--host and --hosts by a stand-in for ssh: exit statuses, words that arrive, answers that lie, usage errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairsched.cli import cli
from fairsched.cli.remote import RemoteCommand
from fairsched.errors import SOME_HOSTS_FAILED
from fairsched.reclaim.hosts import HostsError

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
printf '%s\\n' "$3" >> "$0.said"
case $2 in
    good*) cat "$0.good" ;;
    lies) echo '{"a": 1}' ;;
    deep) cat "$0.deep" ;;
    part) cat "$0.good"; exit 1 ;;
    three) echo "error: no GPU" >&2; exit 3 ;;
    nine) exit 9 ;;
    bare) exit 127 ;;
    hangs) exec sleep 300 ;;
    *) printf 'ssh: no way to %s\\033[2J\\n' "$2" >&2; exit 255 ;;
esac
"""
HOLDER = {
    "pid": 4711,
    "gpu_index": "3",
    "tenant": "chat\ngood2: ok",
    "user": "ann",
    "vram_bytes": 1 << 30,
    "age_s": 7200.0,
    "command": "/usr/bin/train \x1b[31m --all",
    "marks": ["its parent is gone"],
}
PLAN = {
    "plan": {
        "targets": [
            {
                "pid": 4711,
                "user": "ann",
                "uid": 1000,
                "command": "/usr/bin/train",
                "why": "chosen",
                "evidence": [{"vram_bytes": 1 << 30}],
                "notes": ["it is frozen"],
            }
        ],
        "left": [{"pid": 1, "name": "init", "why": "never ended"}],
    },
    "is_done": True,
    "outcome": {
        "is_whole": False,
        "processes": [{"pid": 4711, "fate": "ended", "why": "", "after_s": 1.25}],
        "gpus": [{"index": "3", "is_free": False, "still": ["9 (x) still has 1 context"]}],
        "reset": {"is_done": False, "text": "a display is on it"},
        "warnings": [],
    },
}


class Remote:
    """The stand-in, and what it was asked."""

    def __init__(self, directory: Path) -> None:
        self._ssh = directory / "ssh"
        self._ssh.write_text(SSH)
        self._ssh.chmod(0o755)
        self.answer([HOLDER])
        (directory / "ssh.deep").write_text("[" * 800 + "]" * 800)

    def answer(self, document: object) -> None:
        self._ssh.with_suffix(".good").write_text(json.dumps(document))

    @property
    def said(self) -> list[str]:
        said = self._ssh.with_suffix(".said")
        return said.read_text().splitlines() if said.exists() else []


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Remote(tmp_path)


def ask(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def on(*hosts: str) -> list[str]:
    return [word for host in hosts for word in ("--host", host)]


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["good"], 0),
        (["part"], 1),
        (["three"], 3),
        (["nine"], 1),
        (["bare"], 1),
        (["away"], 1),
        (["lies"], 1),
        (["good", "good2"], 0),
        (["good", "part"], SOME_HOSTS_FAILED),
        (["good", "lies"], SOME_HOSTS_FAILED),
        (["good", "deep"], SOME_HOSTS_FAILED),
        (["three", "away"], 1),
    ],
)
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_exit_status(remote: Remote, hosts: list[str], status: int, extra: list[str]) -> None:
    """One host: its own, so far as it is one of ours; several: all, none or some."""
    assert ask("ps", *on(*hosts), *extra).exit_code == status


def test_late_host_keeps_nobody_waiting(remote: Remote) -> None:
    result = ask("ps", *on("good", "hangs"), "--host-timeout", "1s")
    assert result.exit_code == SOME_HOSTS_FAILED
    assert "hangs: no answer in time: not within 1 s" in result.stdout.splitlines()
    assert result.stdout.splitlines()[-1] == "1 of 2 hosts: ok; 1 no answer in time: hangs"


def test_options_arrive_as_typed(remote: Remote) -> None:
    """One word each, quoted for the shell there; those of this side stay here."""
    ask("reclaim", *on("good"), "--pid", "4711:9", "--reason", "it's $(late)", "--yes", "--parallel", "3")
    assert remote.said == ["fairsched reclaim --json --pid=4711:9 --yes '--reason=it'\"'\"'s $(late)'"]


def test_remote_program(remote: Remote) -> None:
    ask("audit", "show", *on("good"), "-n", "5", "--remote-sudo", "--remote-command", "/opt/fs/bin/fairsched")
    assert remote.said == ["sudo -n -- /opt/fs/bin/fairsched audit show --json --last=5"]


def test_no_line_is_anothers_heading(remote: Remote) -> None:
    """What a tenant chose is printed with escapes, and below its host."""
    lines = ask("ps", *on("good", "away")).stdout.splitlines()
    assert [line for line in lines if line and line[0] != " "] == [
        "good: ok",
        "away: unreachable: ssh: no way to away\\x1b[2J",
        "1 of 2 hosts: ok; 1 unreachable: away",
    ]
    assert not any("\x1b" in line for line in lines)
    assert "train \\x1b[31m" in lines[2]
    assert max(map(len, lines)) <= 80


def test_json_has_an_object_for_each_host(remote: Remote) -> None:
    result = ask("ps", *on("good", "lies", "deep"), "--json")
    good, lies, deep = json.loads(result.stdout)
    assert (good["host"], good["result"], good["answer"]) == ("good", "ok", [HOLDER])
    assert (lies["result"], lies["answer"]) == ("bad answer", None)
    assert (deep["result"], deep["answer"]) == ("bad answer", None)


def test_plan_and_outcome(remote: Remote) -> None:
    remote.answer(PLAN)
    result = ask("reclaim", *on("part"), "--gpu", "3", "--yes")
    assert result.exit_code == 1
    text = result.stdout
    for words in ("4711 train", "ann; chosen, 1.0G", "! it is frozen", "not ended: 1 (init): never ended"):
        assert words in text
    for words in ("ended: 4711 after 1.2 s", "GPU 3: NOT free", "not reset: a display", "done in part"):
        assert words in text


@pytest.mark.parametrize(
    ("command", "document", "words"),
    [
        (["audit", "show"], [], "nothing was reclaimed"),
        (
            ["audit", "verify"],
            {"is_whole": True, "entries": 2, "faults": [], "notes": [], "head": "2:ab"},
            "whole: 2 entries",
        ),
        (
            ["doctor"],
            {"can_run": True, "checks": [{"level": "warn", "name": "psi", "fact": "off", "remedy": "on"}]},
            "warn psi: off",
        ),
        (["ps"], [], "no process uses a GPU"),
    ],
)
def test_other_commands(remote: Remote, command: list[str], document: object, words: str) -> None:
    remote.answer(document)
    result = ask(*command, *on("good"))
    assert result.exit_code == 0, result.output
    assert words in result.stdout


ODD = [None, 7, "x", [1], [None], ["x"], {"checks": 3}, {"plan": []}, [{"pid": [], "vram_bytes": 1}]]
ODD += [[{"pid": 1, "vram_bytes": float("1e300")}], {"is_whole": 1, "entries": "x"}, [[[]]], {}]
ODD += [{"plan": {"targets": [{"pid": 1}], "left": []}}, [{"event": "reclaim"}], [{"event": []}]]


@pytest.mark.parametrize(
    "command",
    [["ps"], ["reclaim", "--gpu=0"], ["status"], ["audit", "show"], ["audit", "verify"], ["doctor"]],
)
@pytest.mark.parametrize("document", ODD)
def test_odd_answers_end_nothing(remote: Remote, command: list[str], document: object) -> None:
    """Whatever a host prints, the other one is shown."""
    remote.answer(document)
    result = ask(*command, *on("good", "away"))
    assert result.exit_code in (1, SOME_HOSTS_FAILED)
    assert isinstance(result.exception, SystemExit), result.exception
    assert "away: unreachable" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ps", "--watch", "--host", "good"], "--watch"),
        (["ps", "--tree", "--host", "good"], "--tree"),
        (["reclaim", "--pid", "1", *on("good", "good2")], "--pid"),
        (["audit", "verify", "--head", "1:a", *on("good", "good2")], "--head"),
        (["ps", "--parallel", "3"], "--host"),
        (["ps", "--remote-sudo"], "--host"),
        (["ps", "--host", "good", "--host-timeout", "soon"], "soon"),
        (["ps", "--host", "good", "--parallel", "0"], "--parallel"),
    ],
)
def test_what_cannot_be_meant(remote: Remote, words: list[str], said: str) -> None:
    result = ask(*words)
    assert result.exit_code == 2
    assert said in result.output
    assert remote.said == []


@pytest.mark.parametrize("words", [["--host=-oProxyCommand=id"], ["--hosts=/no/such"], ["--host=good;id"]])
def test_no_host(remote: Remote, words: list[str]) -> None:
    result = ask("ps", *words)
    assert isinstance(result.exception, HostsError)
    assert result.exception.exit_status == 2
    assert remote.said == []


def test_file_of_hosts(remote: Remote, tmp_path: Path) -> None:
    hosts = tmp_path / "gpus.txt"
    hosts.write_text("good  # the first\n\ngood2\n")
    result = ask("ps", "--hosts", str(hosts), "--host", "good")
    assert result.stdout.splitlines()[-1] == "2 of 2 hosts: ok"


def test_default_limits() -> None:
    from fairsched.cli.remote import _default_s

    assert _default_s("ps", {}) == 10
    assert _default_s("reclaim", {}) == 40
    assert _default_s("reclaim", {"grace": "2m"}) == 130
    assert _default_s("reclaim", {"grace": "5s", "reset_gpu": True}) == 135
    assert _default_s("doctor", {}) == 60


def test_help_names_the_exit_statuses() -> None:
    for words in (["ps"], ["reclaim"], ["status"], ["audit", "show"], ["audit", "verify"], ["doctor"]):
        text = " ".join(ask(*words, "--help").output.split())
        assert f"{SOME_HOSTS_FAILED} some did not" in text
        assert "On other hosts:" in text


def test_only_they_have_it() -> None:
    from fairsched.cli.ps import command

    assert isinstance(command, RemoteCommand)
