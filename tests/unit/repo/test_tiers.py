# SPDX-License-Identifier: Apache-2.0
"""A skip is how a broken set-up looks, too: where node tests are required it must not pass for success."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.repo.tree import ROOT

SUITE = """
import pytest

def test_runs():
    pass

def test_lacks_something():
    pytest.skip("no tracefs: mount it")

def test_cannot_run_on_this_host():
    pytest.skip("host: no kprobes in this kernel")

def test_of_what_is_installed_on_request():
    pytest.skip("extra: no numba: make setup-numba")

@pytest.mark.xfail(reason="known")
def test_known():
    assert False
"""
BARE = """
import pytest

def test_of_root():
    pytest.skip("needs root")

def test_of_a_module():
    pytest.importorskip("no_such_module")

def test_that_says_how():
    pytest.skip("no openssl: apt-get install openssl")

def test_of_another_host():
    pytest.skip("host: no kprobes in this kernel")
"""
MODULE_SKIP = 'import pytest\npytest.skip("no compiler", allow_module_level=True)\n'


LUCKY = """
import pathlib
import pytest

@pytest.mark.parametrize("name", {names})
def test_at_the_second_time(name):
    seen = pathlib.Path(f"seen-{{name}}")
    was_there = seen.exists()
    seen.write_text("")
    assert was_there, f"{{name}} for the first time"
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with the real conftest and one file in each of two tiers."""
    for file in ("tests/conftest.py", "tests/support.py"):
        shutil.copy(ROOT / file, _made(tmp_path / file))
    _made(tmp_path / "tests/node/test_it.py").write_text(SUITE)
    _made(tmp_path / "tests/unit/test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n node\n vm\n gpu\n k8s\naddopts = -ra --import-mode=importlib\n"
    )
    return tmp_path


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def run(
    suite: Path, *args: str, required: str, second_chance: str = "1", name: str = "FAIRSCHED_REQUIRE_NODE"
) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        **dict.fromkeys(("FAIRSCHED_REQUIRE_NODE", "FAIRSCHED_REQUIRE_K8S"), "0"),
        name: required,
        "FAIRSCHED_SECOND_CHANCE": second_chance,
        "PYTEST_ADDOPTS": "",
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args],
        cwd=suite,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_the_order_every_skip_stands(suite: Path) -> None:
    out = run(suite, "tests", required="0")
    assert out.returncode == 0
    assert "6 skipped" in out.stdout
    assert "no tracefs: mount it (FAIRSCHED_REQUIRE_NODE=1 makes this a failure)" in out.stdout
    assert "no kprobes in this kernel (no set-up changes that" in out.stdout


def test_with_the_order_a_skipped_node_test_fails_and_says_why(suite: Path) -> None:
    out = run(suite, "tests/node", required="1")
    assert out.returncode == 1
    assert "1 failed, 1 passed, 2 skipped, 1 xfailed" in out.stdout
    assert "FAIRSCHED_REQUIRE_NODE=1 forbids it: no tracefs: mount it" in out.stdout
    assert re.search(r"extra: no numba: make setup-numba$", out.stdout, re.MULTILINE), "it says how by itself"


def test_the_order_is_for_node_tests_alone(suite: Path) -> None:
    assert run(suite, "tests/unit", required="1").returncode == 0


def test_those_with_a_cluster_have_an_order_of_their_own(suite: Path) -> None:
    shutil.copytree(suite / "tests/node", suite / "tests/k8s")
    assert run(suite, "tests/k8s", required="1").returncode == 0
    out = run(suite, "tests/k8s", required="1", name="FAIRSCHED_REQUIRE_K8S")
    assert out.returncode == 1
    assert "FAIRSCHED_REQUIRE_K8S=1 forbids it: no tracefs: mount it" in out.stdout
    assert "1 failed, 1 passed, 2 skipped, 1 xfailed" in out.stdout


def test_with_the_order_a_module_that_skips_itself_fails(suite: Path) -> None:
    (suite / "tests/node/test_module.py").write_text(MODULE_SKIP)
    assert run(suite, "tests/node/test_module.py", required="0").returncode in (0, 5)
    out = run(suite, "tests/node/test_module.py", required="1")
    assert out.returncode not in (0, 5)
    assert "no compiler" in out.stdout


def test_a_skipped_unit_test_says_what_to_do(suite: Path) -> None:
    (suite / "tests/unit/test_bare.py").write_text(BARE)
    (suite / "tests/unit/test_module.py").write_text(MODULE_SKIP)
    out = run(suite, "tests/unit/test_bare.py", "tests/unit/test_module.py", required="0")
    skips = dict(re.findall(r"^SKIPPED \[1\] tests/unit/(\S+?):\d+: (.*)$", out.stdout, re.MULTILINE))
    assert len(re.findall(r"^SKIPPED ", out.stdout, re.MULTILINE)) == 5, out.stdout
    forced = "(sudo make setup installs what is missing, and sudo make test-unit is root)"
    assert skips["test_module.py"] == f"no compiler {forced}"
    for line in (
        f"needs root {forced}",
        f"No module named 'no_such_module' {forced}",
        "no openssl: apt-get install openssl",
        "no kprobes in this kernel (no set-up changes that: it runs on another host)",
    ):
        assert f"{line}\n" in out.stdout, out.stdout


def test_the_directory_is_the_marker(suite: Path) -> None:
    out = run(suite, "tests", "-m", "node", "--collect-only", "-q", required="0")
    assert "tests/node/test_it.py" in out.stdout
    assert "tests/unit" not in out.stdout


def test_a_node_test_that_fails_once_is_played_again_and_named(suite: Path) -> None:
    (suite / "tests/node/test_lucky.py").write_text(LUCKY.format(names=["a", "b", "c"]))
    out = run(suite, "tests/node/test_lucky.py", required="1")
    assert out.returncode == 0
    assert "3 passed, 3 rerun" in out.stdout
    assert "RERUN tests/node/test_lucky.py::test_at_the_second_time[b]\n" in out.stdout
    assert "b for the first time" in out.stdout, "what failed is told"
    for file in suite.glob("seen-*"):
        file.unlink()
    out = run(suite, "tests/node/test_lucky.py", required="1", second_chance="0")
    assert out.returncode == 1
    assert "3 failed" in out.stdout


def test_a_run_that_needs_many_second_chances_has_failed(suite: Path) -> None:
    (suite / "tests/node/test_lucky.py").write_text(LUCKY.format(names=["a", "b", "c", "d"]))
    out = run(suite, "tests/node/test_lucky.py", required="1")
    assert out.returncode == 1
    assert "4 passed, 4 rerun" in out.stdout
    assert "FAILED 4 tests needed a second chance, 3 may" in out.stdout


def test_what_fails_twice_has_failed_and_a_unit_test_has_one_chance(suite: Path) -> None:
    (suite / "tests/node/test_bad.py").write_text("def test_bad():\n    assert False\n")
    out = run(suite, "tests/node/test_bad.py", required="1")
    assert out.returncode == 1
    assert "1 failed, 1 rerun" in out.stdout
    (suite / "tests/unit/test_lucky.py").write_text(LUCKY.format(names=["a"]))
    out = run(suite, "tests/unit/test_lucky.py", required="1")
    assert out.returncode == 1
    assert "RERUN" not in out.stdout


def test_a_test_that_leaves_hundreds_of_descriptors_is_named(suite: Path) -> None:
    leaky = "import os\nkept = []\n\ndef test_leaks():\n    kept.extend(os.dup(0) for _ in range(400))\n"
    (suite / "tests/unit/test_it.py").write_text(leaky)
    out = run(suite, "tests/unit", required="0")
    assert out.returncode == 1
    assert re.search(r"4\d\d descriptors are open after .*test_leaks, 4\d\d once garbage", out.stdout)


SIGNALLED = """
import signal, subprocess, sys

def test_a_child_can_be_interrupted():
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\\n"
"""


def test_what_tests_start_can_be_interrupted_also_in_the_background(suite: Path) -> None:
    """A script's ``make test &`` has SIGINT ignored."""
    (suite / "tests/unit/test_it.py").write_text(SIGNALLED)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        out = run(suite, "tests/unit/test_it.py", required="0")
    finally:
        signal.signal(signal.SIGINT, before)
    assert out.returncode == 0, out.stdout


ENDED = """
import os, pathlib, signal, time
import pytest

@pytest.fixture
def made(tmp_path):
    yield
    pathlib.Path("undone").touch()

def test_it(made):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


def test_sigterm_ends_a_run_with_its_fixtures_also_in_the_background(suite: Path) -> None:
    (suite / "tests/unit/test_it.py").write_text(ENDED)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        out = run(suite, "tests/unit/test_it.py", required="0")
    finally:
        signal.signal(signal.SIGINT, before)
    assert out.returncode == 2, out.stdout
    assert (suite / "undone").exists()


RESTING = """
import pytest

@pytest.mark.rest
@pytest.mark.parametrize("number", range(40))
def test_long(number):
    pass

def test_short():
    pass
"""


def test_each_of_the_long_ones_is_in_one_quarter(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (suite / "tests/node/test_it.py").write_text(RESTING)
    (suite / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n node\n rest\naddopts = --import-mode=importlib\n"
    )

    def played(rest: str) -> set[str]:
        monkeypatch.setenv("FAIRSCHED_REST", rest)
        out = run(suite, "tests/node", "--collect-only", "-q", required="0")
        assert out.returncode == 0, out.stdout
        return {line for line in out.stdout.splitlines() if "::" in line}

    short = played("none")
    assert len(short) == 1
    quarters = [played(f"{number}/4") - short for number in range(1, 5)]
    assert sum(map(len, quarters)) == len(set().union(*quarters)) == len(played("all") - short) == 40
    assert {len(quarter) for quarter in quarters} == {10}
    monkeypatch.setenv("FAIRSCHED_REST", "5/4")
    assert "say all, none or K/N" in run(suite, "tests/node", required="0").stderr


def test_only_node_tests_have_the_machine_for_themselves() -> None:
    """scripts/test plays what is marked so from tests/node, and all of tests/unit beside others."""
    marked = [path for path in ROOT.glob("tests/*/**/test_*.py") if "mark." + "alone" in path.read_text()]
    assert {path.relative_to(ROOT / "tests").parts[0] for path in marked} == {"node"}
