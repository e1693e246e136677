# SPDX-License-Identifier: Apache-2.0
"""Fifty real sshd's: three say nothing, two refuse; words that arrive through a login shell; an unknown host key."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.errors import SOME_HOSTS_FAILED
from tests.node.reclaim.sshds import Sshds

HOSTS = [f"127.0.1.{number}" for number in range(1, 51)]
HANG, REFUSE = ["127.0.1.7", "127.0.1.9", "127.0.1.31"], ["127.0.1.20", "127.0.1.50"]
SERVE = [host for host in HOSTS if host not in (*HANG, *REFUSE)]
GRACE_S = 5
THERE = r"""#!/bin/sh
address=$(echo "$SSH_CONNECTION" | cut -d' ' -f3)
for word; do case $word in --reason=*) printf '%s' "${word#--reason=}" > "$HOME/reason" ;; esac; done
echo '{"plan": {"targets": [], "left": [{"pid": 1, "name": "'"$address"'", "why": "init"}]}, "is_done": false}'
"""


@pytest.fixture(scope="module")
def sshds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshds]:
    home = tmp_path_factory.mktemp("remote") / "home"
    with contextlib.closing(Sshds(home, SERVE, HANG, THERE)) as found:
        yield found


def hosts_file(directory: Path) -> str:
    path = directory / "gpus.txt"
    path.write_text("\n".join(HOSTS))
    return str(path)


def reclaim(sshds: Sshds, *words: str) -> tuple[int, str, str]:
    there = f"--remote-command={sshds.home}/there"
    run = sshds.fairsched("reclaim", there, f"--grace={GRACE_S}s", "--gpu=0", *words)
    return run.returncode, run.stdout, run.stderr


def test_fifty_hosts(sshds: Sshds, tmp_path: Path) -> None:
    """Those that say nothing or refuse keep nobody waiting, and are told from those that answered."""
    began_s = time.monotonic()
    status, out, err = reclaim(sshds, "--hosts", hosts_file(tmp_path))
    took_s = time.monotonic() - began_s
    assert (status, err) == (SOME_HOSTS_FAILED, "")
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines if line[:8] == "127.0.1."] == HOSTS
    for host in SERVE:
        at = lines.index(f"{host}: ok")
        assert f"not ended: 1 ({host}): init" in "".join(lines[at : at + 3])
    text = " ".join(out.split())
    for host in HANG:
        assert f"{host}: unreachable: Connection timed out during banner exchange" in text
    for host in REFUSE:
        assert f"{host}: unreachable: ssh: connect to host {host} port 22: Connection refused" in text
    assert "45 of 50 hosts: ok; 5 unreachable: 127.0.1.7, 127.0.1.9" in text
    assert took_s <= GRACE_S + 10


def test_json_of_fifty(sshds: Sshds, tmp_path: Path) -> None:
    status, out, _ = reclaim(sshds, "--hosts", hosts_file(tmp_path), "--host-timeout=6s", "--json")
    assert status == SOME_HOSTS_FAILED
    answers = {one["host"]: one["result"] for one in json.loads(out)}
    assert [host for host, result in answers.items() if result == "ok"] == SERVE
    assert {answers[host] for host in HANG} <= {"no answer in time", "unreachable"}


def test_words_arrive_through_the_login_shell(sshds: Sshds) -> None:
    reason = 'it\'s "$(id)" `id` \\ * ; & > x\t|\n#'
    status, out, _ = reclaim(sshds, "--host", HOSTS[0], "--reason", reason)
    assert status == 0, out
    assert (sshds.home / "reason").read_text() == reason


def test_host_without_fairsched(sshds: Sshds) -> None:
    run = sshds.fairsched("ps", "--host", HOSTS[0], "--remote-command", "no-such-fairsched")
    assert run.returncode == 1
    assert run.stdout.startswith(f"{HOSTS[0]}: no fairsched: ")


def test_unknown_host_key_is_refused(sshds: Sshds) -> None:
    """In ssh's words, and nothing is written to known_hosts."""
    known = sshds.home / ".ssh/known_hosts"
    known.unlink()
    try:
        status, out, _ = reclaim(sshds, "--host", HOSTS[0])
        assert not known.exists()
    finally:
        sshds.know_hosts()
    assert status == 1
    assert out == f"{HOSTS[0]}: unreachable: Host key verification failed.\n"
