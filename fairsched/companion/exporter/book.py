# SPDX-License-Identifier: Apache-2.0
"""The rows of one page, by family, and how they are written.

Problem: 64 tenants on 8 GPUs are 15,000 lines. The library that defines the format makes an object of each sample and
a dictionary of its labels: 7 us a line, a tenth of a second a page.

Approach: a row is a tuple of label values and a number; a family is written with one template. A test reads what is
written here with the library's own parser and compares it with what the library itself writes of the same rows.

Formats: the text format 0.0.4, which everything reads, and OpenMetrics 1.0, which differs in the names of counters in
HELP and TYPE, in UNIT, and in its end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairsched.companion.exporter.catalogue import BY_NAME
from fairsched.companion.exporter.family import BOUNDS, BUCKETS, Family, Kind
from fairsched.protocol.own import Histogram

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = tuple[str, ...]


@dataclass
class Book:
    """What one page says. What is None is not known and not written."""

    rows: dict[str, list[tuple[Labels, float]]] = field(default_factory=dict)
    histograms: dict[str, list[tuple[Labels, Histogram]]] = field(default_factory=dict)

    def add(self, name: str, labels: Labels, value: float | None) -> None:
        """One series of a family of the catalogue."""
        if value is not None and math.isfinite(value):
            self.rows.setdefault(name, []).append((labels, value))

    def add_all(self, name: str, labels: Labels, values: Mapping[str, float]) -> None:
        """A series per entry, whose key is the last label."""
        for last, value in values.items():
            self.add(name, (*labels, last), value)

    def add_histogram(self, name: str, labels: Labels, value: Histogram | None) -> None:
        """All series of one histogram."""
        if value is not None:
            self.histograms.setdefault(name, []).append((labels, value))


@functools.lru_cache(maxsize=16384)
def _between_braces(names: Labels, values: Labels) -> str:
    """Labels as they are written; most families have the same ones."""
    # Two names that are no UTF-8 must not become the same one: a page with a series twice is thrown away whole.
    known = (text.encode(errors="backslashreplace").decode() for text in values)
    quoted = (text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for text in known)
    return ",".join(f'{name}="{text}"' for name, text in zip(names, quoted, strict=True))


def _number(value: float) -> str:
    """Python and Go write the shortest digits that are read back as the same number."""
    return repr(value) if isinstance(value, float) else str(int(value))


def write(book: Book, content_type: str) -> bytes:
    """The page in TEXT or OPENMETRICS."""
    is_open = content_type == OPENMETRICS
    lines: list[str] = []
    for name, family in BY_NAME.items():
        rows, histograms = book.rows.get(name), book.histograms.get(name)
        if rows is None and histograms is None:
            continue
        lines += _head(family, is_open=is_open)
        lines += _rows(family, rows or ())
        for labels, histogram in histograms or ():
            lines.append(_histogram(family, labels, histogram))
    if is_open:
        lines.append("# EOF\n")
    return "".join(lines).encode(errors="replace")


def _head(family: Family, *, is_open: bool) -> list[str]:
    name, kind = (family.name, family.kind.value) if is_open else (family.shown, family.kind.value)
    if family.kind is Kind.INFO and not is_open:
        kind = "gauge"
    about = family.help.replace("\\", r"\\").replace("\n", r"\n")
    if is_open:
        about = about.replace('"', r"\"")
    found = [f"# HELP {name} {about}\n", f"# TYPE {name} {kind}\n"]
    if is_open and family.unit:
        found.append(f"# UNIT {name} {family.unit}\n")
    return found


def _rows(family: Family, rows: Iterable[tuple[Labels, float]]) -> list[str]:
    shown = family.shown
    if not family.labels:
        return [f"{shown} {_number(value)}\n" for _, value in rows]
    names = family.labels
    return [f"{shown}{{{_between_braces(names, labels)}}} {_number(value)}\n" for labels, value in rows]


def _histogram(family: Family, labels: Labels, histogram: Histogram) -> str:
    total = histogram.total
    counts = histogram.cumulative(BUCKETS)
    return _form(family.name, family.labels, labels) % (*counts, total, total, _number(histogram.sum_s))


@functools.lru_cache(maxsize=4096)
def _form(name: str, names: Labels, values: Labels) -> str:
    """All lines of one histogram, but for the numbers: from page to page nothing else changes."""
    own = _between_braces(names, values).replace("%", "%%")
    first = f"{name}_bucket{{{own}{',' if own else ''}le="
    lines = [f'{first}"{bound}"}} %d\n' for bound in (*BOUNDS, "+Inf")]
    end = f"{{{own}}}" if own else ""
    return "".join([*lines, f"{name}_count{end} %d\n", f"{name}_sum{end} %s\n"])
