# SPDX-License-Identifier: Apache-2.0
"""abi.h is the one truth: every size, offset and constant of its mirror is compared with gcc's."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from typing import Any

import pytest

from fairsched.bpf import abi
from fairsched.bpf.gpu_time import EDGE, Edge
from tests.unit.bpf.compile import BPF, gcc

HEADER = (BPF / "abi.h").read_text() + (BPF / "abi_driver.h").read_text()
DEFINES = re.findall(r"^#define (FS_\w+) \S", HEADER, re.MULTILINE)
ENUMS = re.findall(r"^\t(FS_\w+) = ", HEADER, re.MULTILINE)
STRUCTS = re.findall(r"^struct (\w+) \{", HEADER, re.MULTILINE)

ONLY_IN_C = {
    "FS_MAX_PROC_CTXS",
    "FS_MAX_CTX_STACK",
    "FS_MAX_DEPS",
    "FS_MAX_USES",
    "FS_MAX_HANDLES",
    "FS_MARK_WAYS",
    "FS_MAX_OWNER_LEVELS",
    "FS_MAX_MAJORS",
    "FS_CLOCK_MAX_N",
    "FS_MAX_DEPTH",
}
"""User space never needs them."""

OF_ENUM = {
    "FS_COUNT_": abi.Count,
    "FS_TABLE_": abi.Table,
    "FS_ROOM_": abi.Room,
    "FS_EDGE_": abi.EdgeKind,
    "FS_CTX_": abi.CtxFlag,
    "FS_DRIVER_COUNT_": abi.DriverCount,
    "FS_ENTRY_": abi.Entry,
    "FS_NODE_": abi.Node,
    "FS_GATE_": abi.GateFlag,
    "FS_VIEW_KIND_": abi.ViewKind,
    "FS_VIEW_BY_": abi.ViewBy,
    "FS_VIEW_COUNT_": abi.ViewCount,
}
OTHERWISE = {
    "FS_COUNTS": len(abi.Count),
    "FS_TABLES": len(abi.Table),
    "FS_ENTRY_TABLES": abi.ENTRY_TABLES,
    "FS_DRIVER_COUNTS": len(abi.DriverCount),
    "FS_VIEW_KINDS": len(abi.ViewKind),
    "FS_VIEW_COUNTS": len(abi.ViewCount),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What gcc says: {"values": {name: n}, "structs": {name: [size, {field: [offset, size]}]}}."""
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "abi.h"', "int main(void) {"]
    lines.append('printf("{\\"values\\": {");')
    for name in [*DEFINES, *ENUMS]:
        lines.append(f'printf("\\"{name}\\": %llu, ", (unsigned long long){name});')
    lines.append('printf("\\"\\": 0}, \\"structs\\": {");')
    for name, mirror in abi.STRUCTS.items():
        lines.append(f'printf("\\"{name}\\": [%zu, {{", sizeof(struct {name}));')
        for field, *_ in mirror._fields_:
            where = f"offsetof(struct {name}, {field}), sizeof(((struct {name} *)0)->{field})"
            lines.append(f'printf("\\"{field}\\": [%zu, %zu], ", {where});')
        lines.append('printf("\\"\\": 0}], ");')
    lines.append('printf("\\"\\": 0}}"); return 0; }')
    program = gcc(tmp_path_factory.mktemp("abi"), "\n".join(lines))
    return json.loads(subprocess.run([str(program)], capture_output=True, check=True, timeout=240).stdout)


def test_the_mirror_has_every_struct_and_no_other() -> None:
    assert set(abi.STRUCTS) == set(STRUCTS)
    assert len(STRUCTS) > 5


@pytest.mark.parametrize("name", sorted(abi.STRUCTS))
def test_a_struct_is_laid_out_as_gcc_lays_it_out(said: Any, name: str) -> None:
    mirror = abi.STRUCTS[name]
    size, fields = said["structs"][name]
    fields.pop("")
    assert ctypes.sizeof(mirror) == size
    ours = {
        field: [getattr(mirror, field).offset, getattr(mirror, field).size] for field, *_ in mirror._fields_
    }
    assert ours == fields


@pytest.mark.parametrize("name", sorted(abi.STRUCTS))
def test_a_struct_has_no_hidden_padding(said: Any, name: str) -> None:
    size, fields = said["structs"][name]
    assert sum(width for _, width in (pair for pair in fields.values() if pair)) == size


@pytest.mark.parametrize("name", sorted({*DEFINES, *ENUMS}))
def test_a_constant_has_the_value_gcc_gives_it(said: Any, name: str) -> None:
    if name in ONLY_IN_C:
        assert not hasattr(abi, name.removeprefix("FS_"))
        return
    value = said["values"][name]
    if name in OTHERWISE:
        assert value == OTHERWISE[name]
        return
    mirror = getattr(abi, name.removeprefix("FS_"), None)
    for prefix, kinds in OF_ENUM.items():
        if mirror is None and name.startswith(prefix):
            mirror = kinds[name.removeprefix(prefix)]
    assert mirror == value


def test_no_enum_of_the_mirror_has_a_member_the_header_lacks() -> None:
    for prefix, kinds in OF_ENUM.items():
        assert {prefix + kind.name for kind in kinds if kind.name} <= set(ENUMS)


def test_an_edge_is_unpacked_in_the_order_of_its_struct() -> None:
    raw = abi.Edge(*range(1, 11))
    assert EDGE.size == ctypes.sizeof(abi.Edge)
    assert Edge._make(EDGE.unpack(bytes(raw))) == Edge(*range(1, 11))
    assert list(Edge._fields) == [field for field, *_ in abi.Edge._fields_]
