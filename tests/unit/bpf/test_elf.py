# SPDX-License-Identifier: Apache-2.0
"""Where a probe goes: past the single-stepped instruction only when the bytes are exactly the known stub."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest

from fairsched.bpf.elf import STUB_SKIP, read_exports, stub_skip
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
