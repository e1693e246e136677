# SPDX-License-Identifier: Apache-2.0
"""A skip is how a broken set-up looks, too: where node tests are required it must not pass for success."""

from __future__ import annotations

import os
import shutil
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

@pytest.mark.xfail(reason="known")
def test_known():
    assert False
"""
MODULE_SKIP = 'import pytest\npytest.skip("no compiler", allow_module_level=True)\n'


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with the real conftest and one file in each of two tiers."""
    shutil.copy(ROOT / "tests/conftest.py", _made(tmp_path / "tests/conftest.py"))
    _made(tmp_path / "tests/node/test_it.py").write_text(SUITE)
    _made(tmp_path / "tests/unit/test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n node\n vm\n gpu\naddopts = -ra --import-mode=importlib\n"
    )
    return tmp_path


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def run(suite: Path, *args: str, required: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FAIRSCHED_REQUIRE_NODE": required, "PYTEST_ADDOPTS": ""}
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
    assert "4 skipped" in out.stdout
    assert "no tracefs: mount it" in out.stdout


def test_with_the_order_a_skipped_node_test_fails_and_says_why(suite: Path) -> None:
    out = run(suite, "tests/node", required="1")
    assert out.returncode == 1
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed" in out.stdout
    assert "FAIRSCHED_REQUIRE_NODE=1 forbids it: no tracefs: mount it" in out.stdout


def test_the_order_is_for_node_tests_alone(suite: Path) -> None:
    assert run(suite, "tests/unit", required="1").returncode == 0


def test_with_the_order_a_module_that_skips_itself_fails(suite: Path) -> None:
    (suite / "tests/node/test_module.py").write_text(MODULE_SKIP)
    assert run(suite, "tests/node/test_module.py", required="0").returncode in (0, 5)
    out = run(suite, "tests/node/test_module.py", required="1")
    assert out.returncode not in (0, 5)
    assert "no compiler" in out.stdout


def test_the_directory_is_the_marker(suite: Path) -> None:
    out = run(suite, "tests", "-m", "node", "--collect-only", "-q", required="0")
    assert "tests/node/test_it.py" in out.stdout
    assert "tests/unit" not in out.stdout
