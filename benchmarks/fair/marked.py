# SPDX-License-Identifier: Apache-2.0
"""Sections of a document that a program writes: what stands between two markers.

    <!-- WORD: name -->
    ... written ...
    <!-- WORD: end -->

The rest of the document is left alone. Writing twice changes nothing, so a test can compare a document with what
would be written. WORD says which program writes: ``quoted`` or ``front_page``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.fair.results import ResultError

_MARKER = r"<!-- {word}: (\w+) -->"
_SECTION = r"(?P<start><!-- {word}: (?P<name>\w+) -->\n).*?(?P<end><!-- {word}: end -->)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; every column but the first to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def filled(text: str, word: str, sections: Mapping[str, Callable[[], str]], name: str = "the text") -> str:
    """The text with its sections written anew. Raises ResultError for a section that nothing writes."""

    def fill(found: re.Match[str]) -> str:
        section = found["name"]
        if section not in sections:
            raise ResultError(
                f"{name}: no section {section!r} is written", remedy=f"one of: {', '.join(sections)}"
            )
        return f"{found['start']}\n{sections[section]()}\n\n{found['end']}"

    marks = re.findall(_MARKER.format(word=word), text)
    if any((mark == "end") != bool(place % 2) for place, mark in enumerate(marks)) or len(marks) % 2:
        raise ResultError(f"{name}: a marker without its end", remedy=f"end each with <!-- {word}: end -->")
    return re.sub(_SECTION.format(word=word), fill, text, flags=re.DOTALL)


def written(paths: Iterable[Path], fill: Callable[[Path, str], str]) -> list[Path]:
    """Write each file anew as ``fill`` says; returns those that changed. A file that is not there is left out."""
    changed = []
    for path in paths:
        if not path.exists():
            continue
        before = path.read_text(encoding="utf-8")
        after = fill(path, before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    return changed
