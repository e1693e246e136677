# SPDX-License-Identifier: Apache-2.0
"""Whether process lists are translated on a host: every reason against it, one fact at a time."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from fairsched.bpf import syscall
from fairsched.driver.pid_view import read_symbols, try_write_user
from fairsched.driver.pid_view_choice import PidViewFacts, choose

CAPABLE = PidViewFacts(
    is_initial_namespace=True,
    has_sys_admin=True,
    has_kprobes=True,
    has_btf=True,
    lockdown="none",
    write_refusal=None,
    entry="nvidia_unlocked_ioctl",
    has_driver=True,
    has_translator=True,
)


def test_it_is_on_where_everything_is_there() -> None:
    for wish in ("auto", "required"):
        assert choose(CAPABLE, wish).is_on
    assert "does not translate by itself" in choose(CAPABLE, "auto").reason


def test_it_is_off_when_nobody_asks_for_it() -> None:
    choice = choose(CAPABLE, "off")
    assert not choice.is_on
    assert "mechanisms.pid_view" in choice.reason


@pytest.mark.parametrize(
    ("fact", "value", "word"),
    [
        ("is_initial_namespace", False, "PID namespace"),
        ("has_sys_admin", False, "CAP_SYS_ADMIN"),
        ("has_kprobes", False, "kprobes"),
        ("has_btf", False, "BTF"),
        ("lockdown", "integrity", "lockdown (integrity)"),
        ("lockdown", "confidentiality", "lockdown (confidentiality)"),
        ("write_refusal", "not allowed", "not allowed"),
        ("entry", None, "ioctl function"),
    ],
)
def test_each_obstacle_is_named_with_a_way_out(fact: str, value: object, word: str) -> None:
    choice = choose(dataclasses.replace(CAPABLE, **{fact: value}), "auto")  # type: ignore[arg-type]
    assert not choice.is_on and not choice.is_waiting
    assert word in choice.reason
    assert choice.remedy


def test_without_a_driver_it_waits_for_one() -> None:
    choice = choose(dataclasses.replace(CAPABLE, entry=None, has_driver=False), "auto")
    assert not choice.is_on
    assert choice.is_waiting


def test_an_unknown_lockdown_is_no_obstacle() -> None:
    """Where securityfs is not mounted; a kernel that refuses says so when it is tried."""
    assert choose(dataclasses.replace(CAPABLE, lockdown=None), "auto").is_on


def test_an_older_driver_has_nobody_to_ask() -> None:
    choice = choose(dataclasses.replace(CAPABLE, has_translator=False), "auto")
    assert choice.is_on
    assert "pids of the host" in choice.reason


@pytest.mark.parametrize(
    ("refused", "says"),
    [((), None), ((64,), "not allowed"), ((64, 16), None)],
)
def test_a_refusal_is_about_writing_only_when_a_program_that_does_nothing_is_taken(
    monkeypatch: pytest.MonkeyPatch, refused: tuple[int, ...], says: str | None
) -> None:
    """On kernels before 5.11 a limit of locked memory refuses whatever comes next, with the same error."""

    def load(_kind: int, insns: bytes) -> int:
        if len(insns) in refused:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return os.open("/dev/null", os.O_RDONLY)

    monkeypatch.setattr(syscall, "load_program", load)
    assert try_write_user() == says


def test_only_functions_of_the_driver_count(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    path.write_text(
        "0000000000000000 T os_find_ns_pid\n"
        "0000000000000000 t nvidia_unlocked_ioctl\t[nvidia]\n"
        "0000000000000000 d nvidia_frontend_unlocked_ioctl\t[nvidia]\n"
        "0000000000000000 T nvidia_open\t[nvidia]\n"
        "0000000000000000 T os_find_ns_pid\t[nvidia_peermem]\n"
    )
    wanted = ("nvidia_unlocked_ioctl", "nvidia_frontend_unlocked_ioctl", "os_find_ns_pid")
    assert read_symbols(wanted, path) == {"nvidia_unlocked_ioctl"}
    assert read_symbols(wanted, tmp_path / "none") == set()
