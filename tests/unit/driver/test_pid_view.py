# SPDX-License-Identifier: Apache-2.0
"""Whether process lists are translated on a host: every reason against it, one fact at a time."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairsched.bpf import syscall
from fairsched.driver import pid_view
from fairsched.driver.pid_view import keep, read_symbols, try_write_user
from fairsched.driver.pid_view_choice import PidViewFacts, choose
from fairsched.errors import HostUnsupported
from tests.support import wait_until

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


class Host:
    """One with the facts it is given, whose kernel takes the programs or does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.facts = CAPABLE
        self.error: HostUnsupported | None = None
        self.views = 0
        monkeypatch.setattr(pid_view, "gather", lambda *about, try_bpf: self.facts)
        monkeypatch.setattr(pid_view, "module_identity", lambda: 1)
        monkeypatch.setattr(pid_view, "PidView", self.view)

    def view(self, facts: PidViewFacts) -> object:
        if self.error is not None:
            raise self.error
        self.views += 1
        return SimpleNamespace(is_needless=lambda: False, status=dict, close=lambda: None)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_what_is_required_and_cannot_be_had_is_no_start(host: Host) -> None:
    host.facts = dataclasses.replace(CAPABLE, lockdown="integrity")
    with pytest.raises(HostUnsupported, match=r"pid_view is required, but kernel lockdown") as found:
        keep("required")
    assert "mechanisms.pid_view: auto" in found.value.remedy
    host.facts, host.error = CAPABLE, HostUnsupported("the verifier said no", remedy="another kernel")
    with pytest.raises(HostUnsupported, match="pid_view is required, but the verifier said no") as found:
        keep("required")
    assert "another kernel" in found.value.remedy


@pytest.mark.parametrize(
    ("wish", "facts", "is_on"),
    [
        ("required", CAPABLE, True),
        ("required", dataclasses.replace(CAPABLE, entry=None, has_driver=False), False),
        ("auto", dataclasses.replace(CAPABLE, lockdown="integrity"), False),
    ],
)
def test_what_can_be_had_or_waits_for_a_driver_or_is_not_required_starts(
    host: Host, wish: str, facts: PidViewFacts, is_on: bool
) -> None:
    host.facts = facts
    keeper = keep(wish)
    assert keeper is not None
    wait_until(lambda: keeper.status()["reason"] != "starting", 10, "it has looked")
    assert keeper.status()["is_on"] is is_on
    assert host.views == is_on, "what was made at the start is not made again"
    keeper.close()


def test_what_is_off_keeps_nothing(host: Host) -> None:
    assert keep("off") is None
