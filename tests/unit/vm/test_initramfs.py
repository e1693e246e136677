# SPDX-License-Identifier: Apache-2.0
"""The guest's first files: an archive that the kernel reads, and modules in an order in which they load."""

from __future__ import annotations

import lzma
import runpy
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.unit.repo.tree import ROOT

INITRAMFS = runpy.run_path(str(ROOT / "scripts/vm/initramfs.py"))
DEPENDS = """kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/drivers/virtio/virtio.ko.xz
kernel/net/9p/9pnet.ko.xz:
kernel/fs/netfs/netfs.ko.xz:
kernel/drivers/virtio/virtio.ko.xz:
kernel/drivers/gpu/other.ko.xz:
kernel/drivers/char/hw_random/virtio-rng.ko.xz: kernel/drivers/virtio/virtio.ko.xz
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    (tmp_path / "modules.dep").write_text(DEPENDS)
    for line in DEPENDS.splitlines():
        path = tmp_path / line.partition(":")[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(path.name.encode()))
    return tmp_path


def test_a_module_comes_after_what_it_depends_on(modules: Path) -> None:
    names = [path.name.split(".")[0] for path in INITRAMFS["module_files"](modules)]
    assert sorted(names) == ["9p", "9pnet", "9pnet_virtio", "netfs", "virtio", "virtio-rng"]
    for before, after in [
        ("9pnet", "9p"),
        ("netfs", "9p"),
        ("virtio", "9pnet_virtio"),
        ("virtio", "virtio-rng"),
    ]:
        assert names.index(before) < names.index(after)


def read_archive(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Name -> (mode, content), the way the kernel goes through it."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields: list[Any] = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name = data[at + 110 : at + 110 + fields[11] - 1].decode()
        body = at + -(-(110 + fields[11]) // 4) * 4
        if name == "TRAILER!!!":
            return found
        found[name] = (fields[1], data[body : body + fields[6]])
        at = body + -(-fields[6] // 4) * 4


def test_the_archive_has_everything_unpacked(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INITRAMFS["entries"].__globals__, "BUSYBOX", modules / "modules.dep")
    found = read_archive(INITRAMFS["archive"](INITRAMFS["entries"](modules, ROOT / "scripts/vm/init")))
    assert found["init"] == (stat.S_IFREG | 0o755, (ROOT / "scripts/vm/init").read_bytes())
    assert found["modules/virtio_rng.ko"] == (stat.S_IFREG | 0o644, b"virtio-rng.ko.xz")
    order = found["modules/order"][1].decode().split()
    assert {f"modules/{name}" for name in order} < set(found)
    assert found["bin/sh"] == (stat.S_IFLNK | 0o777, b"busybox")
