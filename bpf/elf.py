# SPDX-License-Identifier: Apache-2.0
"""Finds where to put a probe in a libcuda file: file offsets of its exports and what their first bytes allow.

Most exports of libcuda begin with ``cmpl $imm32, x(%rip)`` (10 bytes) and ``je``. A uprobe on the first
instruction makes the kernel single-step it out of line (it is RIP-relative), four to six times dearer than
on the ``je``, which the kernel emulates. Arguments and return address are untouched at +10, so that is where
the probe goes when the bytes are exactly these; else at +0.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from fairsched.errors import FairschedError

STUB_SKIP = 10
_CMPL_RIP = b"\x81\x3d"
_JE_REL8 = 0x74


class NotLibcuda(FairschedError):
    """A file that is called libcuda and is none."""


@dataclass(frozen=True)
class Export:
    """One exported function."""

    name: str
    offset: int
    """File offset of its first byte."""
    skip: int
    """Bytes to add to ``offset`` for the cheap place: STUB_SKIP, or 0."""


def stub_skip(head: bytes) -> int:
    """How far into a function that begins with ``head`` the probe may move."""
    if len(head) > STUB_SKIP and head[:2] == _CMPL_RIP and head[STUB_SKIP] == _JE_REL8:
        return STUB_SKIP
    return 0


def read_exports(path: str, name: str | None = None) -> list[Export]:
    """Exported functions of the ELF shared object at ``path``; ``name``: what it is called in errors, if not that.

    Raises NotLibcuda when the file is not a readable x86-64 ELF file, OSError when it cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            elf = ELFFile(file)
            table = elf.get_section_by_name(".dynsym")
            if elf.get_machine_arch() != "x64" or not isinstance(table, SymbolTableSection):
                raise NotLibcuda(f"{name or path}: not an x86-64 shared object with exported symbols")
            exports = []
            for symbol in table.iter_symbols():
                info = symbol["st_info"]
                if info["type"] not in ("STT_FUNC", "STT_GNU_IFUNC") or symbol["st_shndx"] == "SHN_UNDEF":
                    continue
                offset = next(iter(elf.address_offsets(symbol["st_value"])), None)
                if offset is None:
                    continue
                file.seek(offset)
                exports.append(Export(symbol.name, offset, stub_skip(file.read(STUB_SKIP + 2))))
            return exports
        except (OSError, NotLibcuda):
            raise
        except MemoryError as error:  # which says nothing of the file, unless it was made for that
            raise OSError(errno.ENOMEM, "no memory to read it", name or path) from error
        # Not ELFError alone: any process may map a file that was made to have the parser trip.
        except Exception as error:
            raise NotLibcuda(f"{name or path}: not a readable ELF file: {error}") from error
