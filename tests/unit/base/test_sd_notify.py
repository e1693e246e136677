# SPDX-License-Identifier: Apache-2.0
"""systemd is told, over a path or an abstract socket; where there is none nothing happens."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fairsched.base.sd_notify import Notifier


@pytest.mark.parametrize("is_abstract", [False, True])
def test_messages_arrive(tmp_path: Path, is_abstract: bool) -> None:
    name = f"@fairsched-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if is_abstract else name)
        manager.settimeout(5)
        notifier = Notifier({"NOTIFY_SOCKET": name})
        assert notifier.ready()
        assert notifier.status("3 tenants\nREADY=0")
        assert notifier.watchdog()
        assert notifier.reloading()
        assert notifier.stopping()
        got = [manager.recv(4096).decode() for _ in range(5)]
    assert got[:3] == ["READY=1", "STATUS=3 tenants READY=0", "WATCHDOG=1"]
    assert got[3].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert got[4] == "STOPPING=1"


def test_a_status_is_sent_at_every_change_and_at_nothing_else(tmp_path: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    assert not notifier.status("enforce"), "nobody has taken it, so it is sent again"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        told = [notifier.status(text) for text in ("enforce", "enforce", "observe", "enforce")]
        got = [manager.recv(4096).decode() for _ in range(3)]
    assert told == [True, False, True, True]
    assert got == ["STATUS=enforce", "STATUS=observe", "STATUS=enforce"]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:1"}])
def test_outside_systemd_nothing_happens(environ: dict[str, str]) -> None:
    assert not Notifier(environ).ready()


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert not Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


def test_a_manager_that_does_not_read_does_not_block(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "n")})
        assert not all(notifier.watchdog() for _ in range(2000))
