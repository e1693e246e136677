# SPDX-License-Identifier: Apache-2.0
"""Places of structure members, from type information made by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fairsched.bpf import btf

STRUCT, UNION, INT, FUNC_PROTO, ENUM = 4, 5, 1, 13, 6


class Maker:
    """Types as the kernel writes them; ids count from 1."""

    def __init__(self) -> None:
        self.strings = b"\0"
        self.types = b""
        self.last = 0

    def name(self, text: str) -> int:
        if not text:
            return 0
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text) - 1

    def add(self, kind: int, name: str, items: int, rest: bytes, *, flag: int = 0) -> int:
        self.types += struct.pack("=III", self.name(name), flag << 31 | kind << 24 | items, 8) + rest
        self.last += 1
        return self.last

    def structure(
        self, name: str, members: list[tuple[str, int, int]], kind: int = STRUCT, flag: int = 0
    ) -> int:
        rest = b"".join(
            struct.pack("=III", self.name(member), type_id, bits) for member, type_id, bits in members
        )
        return self.add(kind, name, len(members), rest, flag=flag)

    def bytes(self) -> bytes:
        head = struct.pack(
            "=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings)
        )
        return head + self.types + self.strings


def kernel(*, count: str = "f_count") -> Maker:
    made = Maker()
    word = made.add(INT, "long", 0, b"\0\0\0\1")
    made.add(FUNC_PROTO, "", 2, bytes(16))
    made.add(ENUM, "", 1, bytes(8))
    refs = made.structure("", [(count, word, 0)], UNION)
    inner = made.structure("", [("other", word, 0), ("", refs, 64)])
    made.structure("file", [("f_lock", word, 0), ("f_inode", word, 256), ("", inner, 512)])
    made.structure("inode", [("i_rdev", word, 8 * 76), ("i_ino", word, 8 * 64), ("i_sb", word, 8 * 40)])
    made.structure("super_block", [("s_dev", word, 8 * 16)])
    task = [("flag", word, 4 << 24 | 3), ("files", word, 8 * 1824), ("signal", word, 8 * 1840)]
    made.structure("task_struct", task, flag=1)
    made.structure("signal_struct", [("live", word, 8 * 4)])
    made.structure("files_struct", [("fdt", word, 8 * 32)])
    made.structure("fdtable", [("max_fds", word, 0), ("fd", word, 64)])
    return made


def test_members_are_found_also_inside_anonymous_structs_and_unions() -> None:
    found = btf.file_defines(kernel().bytes())
    assert found["FS_FILE_INODE"] == 32
    assert found["FS_INODE_RDEV"] == 76
    assert found["FS_TASK_FILES"] == 1824
    assert found["FS_FDT_FD"] == 8
    assert found["FS_FILE_REFS"] == 64 + 8
    assert found["FS_FILE_LAST_REF"] == 1
    assert (found["FS_TASK_SIGNAL"], found["FS_SIGNAL_LIVE"]) == (1840, 4)


def test_a_struct_with_bit_fields_packs_offset_and_width_together() -> None:
    assert btf.Btf(kernel().bytes(), ["task_struct"]).offset("task_struct", "flag") == 0


def test_the_reference_count_of_newer_kernels_is_one_less() -> None:
    assert btf.file_defines(kernel(count="f_ref").bytes())["FS_FILE_LAST_REF"] == 0


def test_the_cgroups_around_a_task_are_found_where_the_kernel_keeps_their_ids() -> None:
    made = Maker()
    word = made.add(INT, "long", 0, b"\0\0\0\1")
    made.structure("task_struct", [("cgroups", word, 8 * 2000)])
    made.structure("css_set", [("dfl_cgrp", word, 8 * 120)])
    made.structure("cgroup", [("level", word, 8 * 208), ("ancestor_ids", word, 8 * 2688)])
    assert btf.cgroup_defines(made.bytes()) == {
        "FS_TASK_CGROUPS": 2000,
        "FS_CSET_CGROUP": 120,
        "FS_CGROUP_LEVEL": 208,
        "FS_CGROUP_IDS": 2688,
    }
    with pytest.raises(btf.BtfError, match=r"css_set\.dfl_cgrp"):
        btf.cgroup_defines(kernel().bytes())


def test_what_tells_of_the_end_of_a_process_is_found_whole_or_not_at_all() -> None:
    made = Maker()
    word = made.add(INT, "long", 0, b"\0\0\0\1")
    made.structure("task_struct", [("flags", word, 8 * 44), ("signal", word, 8 * 1840)])
    with pytest.raises(btf.BtfError, match=r"signal_struct\.live"):
        btf.end_defines(made.bytes())
    made.structure("signal_struct", [("live", word, 8 * 4)])
    assert btf.end_defines(made.bytes()) == {
        "FS_TASK_FLAGS": 44,
        "FS_TASK_SIGNAL": 1840,
        "FS_SIGNAL_LIVE": 4,
    }


def test_what_is_missing_is_named() -> None:
    with pytest.raises(btf.BtfError, match=r"file\.f_count"):
        btf.file_defines(kernel(count="renamed").bytes())
    made = Maker()
    made.structure("file", [])
    with pytest.raises(btf.BtfError, match=r"inode\.i_rdev"):
        btf.file_defines(made.bytes())


@pytest.mark.parametrize("cut", [0, 10, 30, 100])
def test_a_cut_file_is_an_error_and_no_number(cut: int) -> None:
    with pytest.raises(btf.BtfError):
        btf.file_defines(kernel().bytes()[:cut])


def test_a_kind_of_type_that_is_not_known_is_an_error() -> None:
    made = kernel()
    made.add(31, "new", 0, b"")
    with pytest.raises(btf.BtfError, match="31"):
        btf.file_defines(made.bytes())


def test_a_kernel_without_type_information_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(btf.BtfError) as caught:
        btf.read_btf(tmp_path / "none")
    assert "CONFIG_DEBUG_INFO_BTF" in caught.value.remedy
