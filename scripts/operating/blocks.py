# SPDX-License-Identifier: Apache-2.0
"""Reads the fenced blocks of a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """The text between two fences."""

    line: int
    """Of its first line in the page."""
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All of them, in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, match.start()) + 2, match[1], match[2]) for match in _FENCE.finditer(text)
    ]


def shell_blocks(page: Path) -> list[Block]:
    """Those that a reader executes."""
    return [block for block in blocks(page) if block.language == "sh"]


def section(page: Path, heading: str) -> list[Block]:
    """Those below a heading of the second level. Raises ValueError where there is none of that name."""
    lines = page.read_text(encoding="utf-8").splitlines()
    first = lines.index(f"## {heading}") + 1
    last = next(
        (n for n, line in enumerate(lines, 1) if n > first and line.startswith("## ")), len(lines) + 1
    )
    return [block for block in blocks(page) if first < block.line < last]
