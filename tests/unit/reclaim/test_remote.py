# SPDX-License-Identifier: Apache-2.0
"""Many hosts by a stand-in for ssh: names that are no hosts, quoting, hosts that hang, lie, or print without end."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.reclaim.hosts import HostsError, all_hosts, checked, parse_hosts, remote_words, ssh_argv
from fairsched.reclaim.remote import Limits, Result, Round, harmless, judge

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
    good) exec sh -c "$3" ;;
    hangs) exec sleep 300 ;;
    refuses) echo "ssh: connect to host refuses port 22: Connection refused" >&2; exit 255 ;;
    bare) exec sh -c "no-such-$3" ;;
    endless) exec yes ;;
    chatty) exec yes >&2 ;;
    lies) echo 'Welcome!' ;;
    fails) echo "error: no GPU" >&2; echo "  remedy: buy one" >&2; exit 3 ;;
    part) echo '{"is_done": true}'; exit 1 ;;
esac
"""


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return program


@pytest.mark.parametrize(
    "text",
    [
        *(
            "-oProxyCommand=id",
            "",
            "a b",
            "a\nb",
            "a;id",
            "$(id)",
            "`id`",
            "a\x1b[2J",
            "x" * 256,
            "-l",
            "@a",
            "a'",
        ),
        *("ssh://-oX", "ssh://a:0", "ssh://a:70000", "ssh://a/b", "u;x@h", "ü", "a@-b"),
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(HostsError, match=r"--host: .* is no host") as caught:
        checked(text, "--host")
    assert caught.value.exit_status == 2 and str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text", ["gpu1", "ann@gpu1", "ann@x.org@gpu1", "::1", "10.0.0.1", "ssh://a@[::1]:22"]
)
def test_what_ssh_takes_is_taken(text: str) -> None:
    assert checked(text, "--host") == text


def test_a_file_of_hosts_has_comments_and_each_host_once(tmp_path: Path) -> None:
    assert parse_hosts("# all\n a \nb # the old one\r\n\na\n", "f") == ["a", "b"]
    with pytest.raises(HostsError, match="f:2: '-oX' is no host"):
        parse_hosts("a\n-oX\n", "f")
    with pytest.raises(HostsError, match="no host is in it"):
        parse_hosts("#\n", "f")
    assert len(parse_hosts("\n".join(f"h{number}" for number in range(10_000)), "f")) == 10_000
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\n\tb\r\n")
    assert all_hosts((), tmp_path / "f") == ["a", "b"], "as Windows writes it"
    for odd in ("a b", "a\0", "a\u00a0", "a;b", "$(a)", "a\x1b[2J", "a/b", "\u0430pple"):
        with pytest.raises(HostsError, match=r"f:2: .* is no host"):
            parse_hosts(f"good\n{odd}\n", "f")
    (tmp_path / "f").write_bytes(b"a\n\xff\n")
    with pytest.raises(HostsError, match="f:2: not UTF-8"):
        all_hosts((), tmp_path / "f")
    with pytest.raises(HostsError, match="No such file"):
        all_hosts((), tmp_path / "none")


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
def test_words_arrive_as_they_were(words: list[str]) -> None:
    argv = ssh_argv("ssh", "gpu1", remote_words("printf", ["%s\\0", *words, ""], has_sudo=False), 8)
    assert argv[-3:-1] == ["--", "gpu1"]
    out = subprocess.run(["sh", "-c", argv[-1]], capture_output=True, check=True).stdout
    assert out == b"".join(word.encode() + b"\0" for word in [*words, ""])


def test_each_host_gets_the_result_that_it_earned(fake_ssh: Path) -> None:
    hosts = ["good", "hangs", "refuses", "bare", "endless", "chatty", "lies", "fails", "part"]
    words = ["printf", "%s", '["$(id) it\'s"]']
    start_s = time.monotonic()
    answers = {one.host: one for one in Round(hosts, words, Limits(2.0)).run()}
    assert time.monotonic() - start_s < 10
    found = {host: one.result for host, one in answers.items()}
    assert found == {
        "good": Result.OK,
        "hangs": Result.LATE,
        "refuses": Result.UNREACHABLE,
        "bare": Result.MISSING,
        "endless": Result.BAD,
        "chatty": Result.LATE,
        "lies": Result.BAD,
        "fails": Result.FAILED,
        "part": Result.FAILED,
    }
    assert answers["good"].document == ["$(id) it's"]
    assert "Connection refused" in answers["refuses"].why
    assert answers["fails"].why == "exit status 3: error: no GPU"
    assert answers["part"].document == {"is_done": True}


def test_no_more_at_once_than_allowed_and_the_rest_comes_after(fake_ssh: Path) -> None:
    fake_ssh.write_text("#!/bin/sh\nsleep .2; echo '[]'\n")
    seen: list[int] = []
    one = Round([f"h{number}" for number in range(12)], ["x"], Limits(20.0, parallel=3))
    answers = one.run(lambda: seen.append(len(one.running)))
    assert max(seen) <= 3 and all(each.result is Result.OK for each in answers)


def test_answers_of_all_hosts_together_are_bounded(fake_ssh: Path) -> None:
    fake_ssh.write_text("#!/bin/sh\nprintf '[\"%01000d\"]' 1\n")
    answers = Round(["a", "b", "c"], ["x"], Limits(20.0, all_bytes=2500)).run()
    assert sorted(one.result.value for one in answers) == ["bad answer", "ok", "ok"]


@pytest.mark.parametrize("out", [b"[" * 100_000, b"[NaN]", b"1", b'"x"', b"\xff", b"{"])
def test_what_is_no_answer_is_said(out: bytes) -> None:
    assert judge(0, out, b"")[0] is Result.BAD


def test_an_answer_steers_no_terminal() -> None:
    document = json.loads('{"a\\u001b[2J": ["x\\ny", {"b": "\\u202e"}], "n": 1}')
    assert harmless(document) == {"a\\x1b[2J": ["x\\ny", {"b": "\\u202e"}], "n": 1}
