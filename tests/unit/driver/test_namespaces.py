# SPDX-License-Identifier: Apache-2.0
"""What /proc says of a process that names itself as it likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.driver.namespaces import Places, started


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """One process, 77, that is 7 in a PID namespace below the initial one, and says 1 by its name."""
    (tmp_path / "77").mkdir()
    name = b"\xff\rNSpid:\t77\t1"
    (tmp_path / "77/status").write_bytes(b"Name:\t" + name + b"\nState:\tS\nNSpid:\t77\t7\n")
    (tmp_path / "77/stat").write_bytes(b"77 (" + name + b") R) S 1 " + b"0 " * 17 + b"4711 0\n")
    return tmp_path


def test_a_name_that_is_no_utf8_hides_no_process(proc: Path) -> None:
    assert started(77, proc) == "4711"


def test_a_name_says_nothing_of_the_number_in_the_namespace(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(proc)
    monkeypatch.setattr(places, "_namespaces", lambda _path: (1,))
    assert places.of(77) == [(1, 7)]
