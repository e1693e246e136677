# SPDX-License-Identifier: Apache-2.0
"""Links between the documents lead somewhere: to a file, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.repo.tree import ROOT, project_files

PAGES = [path for path in project_files() if path.suffix == ".md"]
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(path: Path) -> str:
    """Without blocks of code."""
    return _FENCE.sub("", (ROOT / path).read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Of its headings, as the forge makes them; of two that are alike the second has a number."""
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} +(.+)$", text_of(path), flags=re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.append(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return {
        name if not found[:i].count(name) else f"{name}-{found[:i].count(name)}"
        for i, name in enumerate(found)
    }


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for link in _LINK.findall(_CODE.sub("", text_of(page))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []
