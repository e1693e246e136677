# SPDX-License-Identifier: Apache-2.0
"""What make test-vm says and ends with when it cannot do what it was asked."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.repo.tree import ROOT

RUN = ROOT / "scripts/vm/run.py"


def names() -> dict[str, Any]:
    """Of the script; what it puts on the path to import its neighbours is taken off again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        return runpy.run_path(str(RUN))


NAMES = names()


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, RUN, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_an_unknown_kernel_is_a_usage_error() -> None:
    out = run("4.4")
    assert (out.returncode, out.stdout) == (2, "")
    assert "5.10|6.1|6.12|7.2" in out.stderr


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("6.1", ("6.1", "v2")),
        ("5.10+v1", ("5.10", "v1")),
        ("6.12+lockdown", ("6.12", "lockdown")),
        ("6.1+systemd", ("6.1", "systemd")),
        ("6.1+", None),
        ("6.1+v3", None),
        ("+v1", None),
    ],
)
def test_a_target_is_a_kernel_and_how_it_boots(word: str, target: tuple[str, str] | None) -> None:
    assert NAMES["parse_target"](word) == target


@pytest.mark.parametrize("boot", NAMES["BOOTS"])
def test_the_guest_learns_how_it_was_booted(boot: str, tmp_path: Path) -> None:
    (tmp_path / "release").write_text("6.1.0-50-amd64\n")
    NAMES["write_orders"](tmp_path, tmp_path, boot, "true\n")
    assert (tmp_path / "boot").read_text() == f"{boot}\n"
    words = NAMES["qemu_arguments"](Path("/k"), Path("/i"), "6.1", boot, tmp_path)
    line = words[words.index("-append") + 1]
    assert ("lockdown=confidentiality" in line) is (boot == "lockdown")
    assert ("cgroup_no_v1=all" in line) is (boot in ("v2", "lockdown", "systemd"))
    orders = NAMES["command"](Path("/m"), "6.1", boot, [])
    assert f"export FAIRSCHED_VM_BOOT={boot}\n" in orders


def test_what_is_missing_is_named_with_its_package_and_the_remedy(tmp_path: Path) -> None:
    out = run("6.1", PATH=str(tmp_path))
    assert out.returncode == 3
    assert "qemu-system-x86_64 (package qemu-system-x86)" in out.stderr
    assert "sudo make setup-vm" in out.stderr


def test_outside_a_guest_nothing_of_tests_vm_is_collected() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "tests/vm"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("FAIRSCHED_VM")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no tests collected" in out.stdout
    assert "::" not in out.stdout


@pytest.mark.parametrize("is_short", [False, True])
def test_a_guest_goes_all_the_way_unless_it_is_told_not_to(is_short: bool) -> None:
    """make test-vm and test-vm-all never say so."""
    orders = NAMES["command"](Path("/m"), "6.1", "v2", ["-x"], is_short=is_short)
    assert f"export FAIRSCHED_VM_SHORT={int(is_short)}\n" in orders
    assert orders.endswith(
        "-m pytest -p no:cacheprovider -o timeout=600 tests/vm --ignore=tests/vm/test_rungs.py -x\n"
    )
    assert "--short" not in (ROOT / "Makefile").read_text() + (ROOT / "scripts/vm/matrix.py").read_text()


def test_a_guest_with_systemd_plays_the_node_of_a_cluster() -> None:
    orders = NAMES["command"](Path("/m"), "6.1", "systemd", [])
    tests = NAMES["CLUSTER_TESTS"]
    assert orders.endswith(f"timeout=1800 {' '.join(tests)}\n")
    assert all((ROOT / one).is_file() for one in tests)
