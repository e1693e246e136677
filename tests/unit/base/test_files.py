# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fairsched.base.files import replace_file, replacing


def write_whole(path: Path, text: str) -> None:
    replace_file(path, text.encode())


def write_for_people(path: Path, text: str) -> None:
    with replacing(path) as scratch:
        scratch.write_text(text)


Write = Callable[[Path, str], None]
BOTH = pytest.mark.parametrize("write", [write_whole, write_for_people])


@BOTH
def test_what_was_there_is_replaced_and_a_link_is_not_followed(tmp_path: Path, write: Write) -> None:
    target, path = tmp_path / "target", tmp_path / "name"
    target.write_text("somebody's")
    path.symlink_to(target)
    write(path, "ours")
    assert (path.read_text(), path.is_symlink()) == ("ours", False)
    assert target.read_text() == "somebody's"


@BOTH
def test_a_failure_leaves_what_was_there_and_nothing_beside_it(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "name"
    path.write_text("before")

    def full(*_args: object, **_named: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "chown", full)
    with pytest.raises(OSError, match="No space"):
        write(path, "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["name"]


def test_it_is_on_the_disk_before_it_has_the_name_and_the_name_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "name"
    kept: list[tuple[bool, bool, int]] = []

    def sync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        kept.append((path.exists(), stat.S_ISDIR(status.st_mode), status.st_size))

    monkeypatch.setattr(os, "fsync", sync)
    replace_file(path, b"{}")
    assert kept[0] == (False, False, 2)
    assert [(exists, is_directory) for exists, is_directory, _ in kept[1:]] == [(True, True)]
    kept.clear()
    replace_file(path, b"{}", is_durable=False)
    assert not kept


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_only_who_is_meant_may_read_it(tmp_path: Path, mode: int) -> None:
    replace_file(tmp_path / "name", b"", mode=mode)
    assert stat.S_IMODE((tmp_path / "name").stat().st_mode) == mode
