# SPDX-License-Identifier: Apache-2.0
"""What is kept of compiled programs is what was compiled, by root alone, or counts as nothing."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from fairsched.bpf import cache
from fairsched.bpf.compiled import Compiled, MapSpec, with_maps

MAP_LOAD = struct.pack("<BBhi", 0x18, 1 << 4 | 1, 0, 1) + bytes(8)
NUMBER = struct.pack("<BBhi", 0x18, 2, 0, 1) + struct.pack("<BBhi", 0, 0, 0, 7)
EXIT = struct.pack("<BBhi", 0x95, 0, 0, 0)
MADE = Compiled(
    (MapSpec("a", 2, 4, 8, 16, 1024), MapSpec("b", 27, 0, 0, 4096, 0)),
    {"on_it": MAP_LOAD + NUMBER + EXIT, "lsm__it": EXIT},
    {"lsm__it": 77},
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRSCHED_BPF_CACHE", str(tmp_path / "bpf"))
    monkeypatch.setattr(cache, "bcc_identity", lambda: "bcc 1")
    return tmp_path / "bpf"


def file_of(place: Path) -> Path:
    (file,) = place.glob("*.bin")
    return file


def test_what_is_kept_comes_back_as_it_was(place: Path) -> None:
    key = cache.key_of("text", ["-DA=1"])
    assert cache.read(key) is None
    cache.write(key, MADE)
    assert cache.read(key) == MADE
    assert place.stat().st_mode & 0o777 == 0o700
    assert file_of(place).stat().st_mode & 0o777 == 0o600


def test_the_name_follows_text_flags_compiler_and_kernel(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {cache.key_of("text", []), cache.key_of("text", ["-DA=1"]), cache.key_of("other", [])}
    monkeypatch.setattr(cache, "bcc_identity", lambda: "bcc 2")
    keys.add(cache.key_of("text", []))
    monkeypatch.setattr(cache.btf, "read_btf", lambda: b"other types")
    keys.add(cache.key_of("text", []))
    host = os.uname()
    monkeypatch.setattr(cache.os, "uname", lambda: os.uname_result((*host[:2], "other", *host[3:])))
    keys.add(cache.key_of("text", []))
    assert len(keys) == 6


def test_the_name_follows_the_headers_the_compiling_modules_and_the_libraries_of_bcc(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "headers").mkdir()
    files = [tmp_path / "headers" / "linux.h", tmp_path / "compiler.py"]
    keys = set()
    monkeypatch.setattr(cache, "_HEADERS", tmp_path / "headers")
    monkeypatch.setattr(cache, "_COMPILING", (tmp_path / "compiler.py",))
    for file in files:
        file.write_text("one")
    keys.add(cache.key_of("text", []))
    for file in files:
        file.write_text("two")
        keys.add(cache.key_of("text", []))
    assert len(keys) == 3


def test_another_library_of_bcc_is_another_bcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "bcc"
    package.mkdir()
    for name in ("__init__.py", "version.py", "libbcc.py"):
        (package / name).write_text("")
    library = tmp_path / "libLLVM-14.so.1"
    library.write_text("one")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bcc", raising=False)
    monkeypatch.setattr(cache, "_LIBRARY_PLACES", (tmp_path,))
    before = cache.bcc_identity()
    assert before is not None and str(library) in before
    library.write_text("another")
    assert cache.bcc_identity() != before


def test_without_a_bcc_nothing_is_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a host that lost it would go on until something changes, and then not start."""
    monkeypatch.setattr(cache, "bcc_identity", lambda: None)
    assert cache.key_of("text", []) is None
    cache.write(None, MADE)
    assert cache.read(None) is None
    assert not place.exists()


def test_an_empty_place_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIRSCHED_BPF_CACHE", "")
    assert cache.directory() is None
    cache.write("key", MADE)
    assert cache.read("key") is None
    monkeypatch.delenv("FAIRSCHED_BPF_CACHE")
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}:/elsewhere")
    assert cache.directory() == tmp_path / "bpf"


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "no programs"])
def test_a_damaged_file_counts_as_none(place: Path, damage: str) -> None:
    cache.write("key", MADE)
    file = file_of(place)
    data = file.read_bytes()
    wrong = {
        "cut": data[:-9],
        "changed": data.replace(b'"a"', b'"c"'),
        "empty": b"",
        "no programs": data.replace(b"fairsched-bpf", b"other-program"),
    }
    file.write_bytes(wrong[damage])
    assert cache.read("key") is None
    cache.write("key", MADE)
    assert cache.read("key") == MADE, "and is made anew"


@pytest.mark.parametrize("mode", [0o602, 0o620])
def test_a_file_that_others_may_write_counts_as_none(place: Path, mode: int) -> None:
    cache.write("key", MADE)
    file_of(place).chmod(mode)
    assert cache.read("key") is None


def test_a_place_that_others_may_write_is_not_used(place: Path) -> None:
    cache.write("key", MADE)
    place.chmod(0o770)
    assert cache.read("key") is None
    cache.write("other", MADE)
    assert len(list(place.iterdir())) == 1
    place.chmod(0o700)
    place.parent.chmod(0o777)
    assert cache.read("key") is None, "who may write above it may put another in its place"


def test_a_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    cache.write("key", MADE)
    file = file_of(place)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert cache.read("key") is None
    file.unlink()
    (tmp_path / "elsewhere").rename(file)
    assert cache.read("key") == MADE
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    assert cache.read("key") is None


def test_a_link_on_the_way_is_not_followed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write("key", MADE)
    (tmp_path / "way").symlink_to(tmp_path)
    monkeypatch.setenv("FAIRSCHED_BPF_CACHE", str(tmp_path / "way/bpf"))
    assert cache.read("key") is None


def test_what_is_no_file_counts_as_none_and_gives_way(place: Path) -> None:
    cache.write("other", MADE)
    (place / "key.bin").mkdir()
    assert cache.read("key") is None
    cache.write("key", MADE)
    assert cache.read("key") == MADE
    (place / "key.bin").unlink()
    os.mkfifo(place / "key.bin")
    assert cache.read("key") is None, "without waiting for a writer"


def test_parents_are_made_safe_whatever_the_umask(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSCHED_BPF_CACHE", str(place / "a/b"))
    before = os.umask(0o002)
    try:
        cache.write("key", MADE)
    finally:
        os.umask(before)
    assert cache.read("key") == MADE


def test_why_nothing_is_kept_is_said(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write("key", MADE)
    place.chmod(0o770)
    cache.write("key", MADE)
    said = capfd.readouterr().err
    assert str(place) in said and "chmod go-w" in said
    monkeypatch.setenv("FAIRSCHED_BPF_CACHE", "relative")
    assert cache.directory() is None


def test_what_a_killed_writer_left_goes(place: Path) -> None:
    cache.write("key", MADE)
    left = place / ".key.bin.x"
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    cache.write("key", MADE)
    assert not left.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo make test-unit")
def test_a_file_of_somebody_else_counts_as_none(place: Path) -> None:
    cache.write("key", MADE)
    os.chown(file_of(place), 65534, 65534)
    assert cache.read("key") is None


def test_the_oldest_files_go(place: Path) -> None:
    for number in range(cache._MOST_FILES + 3):
        cache.write(f"key{number}", MADE)
        os.utime(place / f"key{number}.bin", (number, number))
    kept = {path.stem for path in place.iterdir()}
    assert len(kept) == cache._MOST_FILES
    assert "key0" not in kept


def test_a_map_is_loaded_by_its_descriptor() -> None:
    patched = with_maps("on_it", MADE.programs["on_it"], [30, 31])
    assert struct.unpack_from("<i", patched, 4) == (31,)
    assert patched[8:] == MADE.programs["on_it"][8:], "a number that is no map stays"


@pytest.mark.parametrize("insns", [MAP_LOAD + EXIT, EXIT[:-1]])
def test_programs_that_name_no_map_of_theirs_are_none(insns: bytes) -> None:
    data = Compiled((MADE.maps[0],), {"on_it": insns}).to_bytes()
    with pytest.raises(ValueError, match="on_it"):
        Compiled.from_bytes(data)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"maps": 1, "programs": {}, "hooks": {}}', b"\xff"])
def test_what_is_not_compiled_programs_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # whichever of them
        Compiled.from_bytes(data)
