# SPDX-License-Identifier: Apache-2.0
"""Where a probe goes: past the single-stepped instruction only when the bytes are exactly the known stub."""

from __future__ import annotations

import contextlib
import os
import struct
import time
from pathlib import Path

import pytest

from fairsched.bpf.elf import MOST_SYMBOLS, STUB_SKIP, NotLibcuda, read_exports, stub_skip
from fairsched.errors import FairschedError
from tests.unit.bpf.compile import gcc

STUB = bytes.fromhex("813d 44332211 00ba1c32 740a ff25")


@pytest.mark.parametrize(
    ("head", "skip"),
    [
        (STUB, STUB_SKIP),
        (STUB[:11], STUB_SKIP),
        (STUB[:10], 0),  # cut short: what follows is not known
        (b"", 0),
        (STUB[:10] + b"\x75" + STUB[11:], 0),  # jne: as cheap, but not the stub we know
        (b"\x83" + STUB[1:], 0),
        (STUB[:1] + b"\x3c" + STUB[2:], 0),
        (b"\x55\x48\x89\xe5" + STUB, 0),
        (bytes.fromhex("f30f1efa") + STUB, 0),
    ],
)
def test_the_probe_moves_only_past_the_known_stub(head: bytes, skip: int) -> None:
    assert stub_skip(head) == skip


TEXT = """
asm(".globl cuStub\\n.type cuStub, @function\\ncuStub:\\n"
    ".byte 0x81, 0x3d, 0, 0, 0, 0, 0, 0xba, 0x1c, 0x32\\nje 1f\\nnop\\n1: ret\\n.size cuStub, .-cuStub\\n");
int cuPlain(int x) { return x + 1; }
static int hidden(int x) { return x; }
int cuData = 3;
int cuOther(int x) { return hidden(x) + puts_like(x); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = "int puts_like(int);\n" + TEXT
    return gcc(
        tmp_path_factory.mktemp("elf"), text, "-shared", "-fPIC", "-Wl,--unresolved-symbols=ignore-all"
    )


def test_exported_functions_are_found_at_their_bytes(library: Path) -> None:
    found = {export.name: export for export in read_exports(str(library))}
    assert {"cuStub", "cuPlain", "cuOther"} <= set(found)
    assert {"hidden", "cuData", "puts_like"}.isdisjoint(found)
    assert found["cuStub"].skip == STUB_SKIP
    assert found["cuPlain"].skip == 0
    assert library.read_bytes()[found["cuStub"].offset :].startswith(b"\x81\x3d\0\0\0\0\0\xba\x1c\x32\x74")


def test_a_file_that_is_no_library_is_an_error_that_names_it(tmp_path: Path) -> None:
    for name, text in (("empty", b""), ("text", b"hello"), ("cut", b"\x7fELF\x02\x01\x01" + bytes(20))):
        path = tmp_path / name
        path.write_bytes(text)
        with pytest.raises(FairschedError, match=name):
            read_exports(str(path))


def test_a_file_made_to_confuse_is_no_libcuda(library: Path, tmp_path: Path) -> None:
    """Any process may map one. Whoever reads it holds the probes of all the others, and must not die of it."""
    data = bytearray(library.read_bytes())
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    path = tmp_path / "made.so"
    for at in (*range(64), *range(sections, len(data))):
        made = bytearray(data)
        made[at] = 0xFF
        path.write_bytes(made)
        with contextlib.suppress(FairschedError, OSError):
            read_exports(str(path))


def _claims(library: Path, tmp_path: Path, **values: int) -> Path:
    """The library, with numbers of its own choice in the section of its dynamic symbols or of their names."""
    data = bytearray(library.read_bytes())
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    (count,) = struct.unpack_from("<H", data, 0x3C)
    at = next(s for n in range(count) if data[(s := sections + 64 * n) + 4] == 11)
    (names,) = struct.unpack_from("<I", data, at + 40)
    places = {"symbols": at + 32, "symbols_at": at + 24, "names": sections + 64 * names + 32}
    for what, value in values.items():
        struct.pack_into("<Q", data, places[what], value)
    path = tmp_path / "made.so"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"symbols": 24 * 10**11}, "100000000000 symbols"),
        ({"symbols": 24 * (MOST_SYMBOLS + 1)}, f"{MOST_SYMBOLS + 1} symbols"),
        ({"symbols": 24 * MOST_SYMBOLS}, "symbols are beyond its end"),
        ({"symbols_at": 1 << 62}, "symbols are beyond its end"),
        ({"names": 1 << 40}, "bytes of names"),
    ],
)
def test_what_a_file_claims_to_have_is_compared_before_it_is_read(
    library: Path, tmp_path: Path, values: dict[str, int], says: str
) -> None:
    path = _claims(library, tmp_path, **values)
    with pytest.raises(NotLibcuda, match=says):
        read_exports(str(path))


def test_the_largest_file_that_is_read_takes_milliseconds(library: Path, tmp_path: Path) -> None:
    path = _claims(library, tmp_path, symbols=24 * MOST_SYMBOLS)
    os.truncate(path, 1 << 40)
    begun_s = time.process_time()
    assert read_exports(str(path))
    assert time.process_time() - begun_s < 1.0


def test_an_export_beyond_the_end_of_the_file_is_none(library: Path, tmp_path: Path) -> None:
    """The kernel would refuse a probe there, and all others that it is asked for along with it."""
    data = bytearray(library.read_bytes())
    last = max(export.offset for export in read_exports(str(library)))
    (segments,) = struct.unpack_from("<Q", data, 0x20)
    (count,) = struct.unpack_from("<H", data, 0x38)
    for at in range(segments, segments + 56 * count, 56):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", data, at)
        if kind == 1 and offset <= last < offset + size:
            struct.pack_into("<Q", data, at + 8, len(data) - (last - offset))
    path = tmp_path / "made.so"
    path.write_bytes(data)
    assert all(export.offset + STUB_SKIP < len(data) for export in read_exports(str(path)))
    assert len(read_exports(str(path))) < len(read_exports(str(library)))
