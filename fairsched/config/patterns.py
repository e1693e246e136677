# SPDX-License-Identifier: Apache-2.0
"""Cgroup patterns: what they match, and whether two of them can claim the same cgroup.

A pattern is a path relative to the cgroup2 mount. ``*`` and ``?`` match inside one component,
``**`` matches any number of whole components (at the end: at least one), as in cgroup/glob.py, whose
language this is without ``[...]``. A claim covers the cgroup and everything below it,
so two patterns overlap when some path matched by one is equal to, above or below a path matched
by the other.

Because the language is this small, overlap is decided exactly and a witness can be shown: both a
component (a sequence of characters with stars) and a path (a sequence of components with stars)
are the same problem, solved by :func:`_meet`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from fairsched.cgroup.glob import Globs

MAX_PATTERN_CHARS = 1024
MAX_COMPONENT_CHARS = 255
"""NAME_MAX: no cgroup has a longer name."""

_DEEP = "**"
_MOUNT = ["sys", "fs", "cgroup"]
T = TypeVar("T")


class NotBelowMount(ValueError):
    """A path of the file system, where one below the mount of cgroups is meant."""

    def __init__(self, text: str, parts: Sequence[str]) -> None:
        super().__init__(f"'{text}' begins with where cgroups are mounted")
        below = "/".join(parts[1:] if parts[:1] == ["unified"] else parts)
        self.remedy = f"write what /proc/PID/cgroup shows: {below or 'gpu.slice/NAME'}"


def normalise(text: str) -> str:
    """The pattern as it is kept: no leading or trailing slash.

    Raises ValueError with a plain sentence when it is not a usable pattern.
    """
    pattern = text.strip("/")
    if not pattern:
        raise ValueError("the root cgroup cannot be a tenant (the kernel cannot freeze it)")
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"the pattern is longer than {MAX_PATTERN_CHARS} characters")
    parts = pattern.split("/")
    if parts[:3] == _MOUNT:
        raise NotBelowMount(text, parts[3:])
    for part in parts:
        _check_component(part)
    if parts.count(_DEEP) > 1:
        raise ValueError("'**' may be used once in a pattern")
    if pattern == _DEEP:
        raise ValueError("'**' alone would claim every cgroup, init's and fairsched's own too")
    return pattern


def _check_component(part: str) -> None:
    if part in ("", ".", ".."):
        raise ValueError(f"'{part}' is not a path component (no empty, '.' or '..' parts)")
    if len(part) > MAX_COMPONENT_CHARS:
        raise ValueError(f"a path component is longer than {MAX_COMPONENT_CHARS} characters")
    if _DEEP in part and part != _DEEP:
        raise ValueError(f"'{part}': '**' must be a component of its own")
    if any(char in part for char in "[]{}"):
        raise ValueError(f"'{part}': only * ? and ** are understood, no [..] or {{..}}")
    if not part.isprintable():
        raise ValueError("the pattern contains control characters")


def is_literal(pattern: str) -> bool:
    """True when the pattern names exactly one cgroup."""
    return "*" not in pattern and "?" not in pattern


@functools.lru_cache(maxsize=4096)
def _globs(pattern: str) -> Globs:
    return Globs((pattern,))


def claimed_prefix(pattern: str, path: str) -> str | None:
    """The shallowest prefix of `path` the pattern matches: the cgroup that is held; None = no claim.

    `path` is relative to the cgroup2 mount. Shallowest, because a hold on it covers all below.
    """
    if is_literal(pattern):
        return pattern if path == pattern or path.startswith(pattern + "/") else None
    globs = _globs(pattern)
    state = globs.start
    end = -1
    while end < len(path):
        start, end = end + 1, path.find("/", end + 1)
        end = len(path) if end < 0 else end
        state = globs.step(state, path[start:end])
        if not state:
            return None
        if globs.is_match(state):
            return path[:end]
    return None


def near_pairs(found: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Pairs (later, earlier) that may overlap: the plain beginning of one is one of the other's. The daemon checks
    a thousand tenants between two ticks, and of a thousand plain paths no two are such a pair."""
    at: dict[tuple[str, ...], list[int]] = {}
    """By their whole plain beginning."""
    below: dict[tuple[str, ...], list[int]] = {}
    """By each part of it."""
    for later, pattern in enumerate(found):
        plain = tuple(itertools.takewhile(is_literal, pattern.split("/")))
        starts = [plain[:length] for length in range(len(plain) + 1)]
        near = set(below.get(plain, ())).union(*(at.get(start, ()) for start in starts[:-1]))
        yield from ((later, earlier) for earlier in sorted(near))
        at.setdefault(plain, []).append(later)
        for start in starts:
            below.setdefault(start, []).append(later)


def overlap(first: str, second: str) -> str | None:
    """A cgroup path both patterns claim, as an example; None when there cannot be one."""
    one, two = first.split("/"), second.split("/")
    if _DEEP not in one and _DEEP not in two:
        return _overlap_by_component(one, two)
    path = _meet(
        _with_descendants(one),
        _with_descendants(two),
        star=_DEEP,
        meet=component_overlap,
        example=lambda part: component_overlap(part, part) or "x",
    )
    return None if path is None else "/".join(path)


def _overlap_by_component(one: Sequence[str], two: Sequence[str]) -> str | None:
    """:func:`overlap` without ``**``, the common case: compare until the shorter one ends."""
    longer = one if len(one) >= len(two) else two
    found: list[str] = []
    for index, part in enumerate(longer):
        in_both = index < min(len(one), len(two))
        example = component_overlap(one[index], two[index]) if in_both else component_overlap(part, part)
        if example is None:
            return None
        found.append(example)
    return "/".join(found)


def _with_descendants(parts: Sequence[str]) -> list[str]:
    """What is below a claimed cgroup is claimed too; a ``**`` at the end is at least one component."""
    return [*parts[:-1], "*", _DEEP] if parts[-1] == _DEEP else [*parts, _DEEP]


def component_overlap(first: str, second: str) -> str | None:
    """A name both single-component patterns match; None when there is none."""
    if is_literal(first) and is_literal(second):
        return first if first == second else None
    if not _may_meet(first, second):
        return None
    chars = _meet(first, second, star="*", meet=_same_char, example=lambda char: _same_char(char, "?") or "")
    if chars is None:
        return None
    return "".join(chars) or "x"  # a name is never empty; a lone star matches any


def _may_meet(first: str, second: str) -> bool:
    """A cheap no: the plain text before the first wildcard, or after the last, differs."""
    return _agree(first, second) and _agree(first[::-1], second[::-1])


def _agree(first: str, second: str) -> bool:
    for one, two in zip(first, second, strict=False):
        if one == "*" or two == "*":
            return True
        if _same_char(one, two) is None:
            return False
    return True  # one ended: a later star may take the rest of the other


def _same_char(one: str, two: str) -> str | None:
    if one == "?":
        return "x" if two == "?" else two
    return one if two in ("?", one) else None


def _meet(
    first: Sequence[T],
    second: Sequence[T],
    *,
    star: T,
    meet: Callable[[T, T], str | None],
    example: Callable[[T], str],
) -> list[str] | None:
    """A sequence matched by both patterns, or None. `star` matches any run, the empty one too.

    ``ok[i][j]`` says whether first[i:] and second[j:] have a common match; it is filled from the
    end, then walked from the start. O(len(first) x len(second)) calls of `meet`.
    """
    rows, columns = len(first), len(second)
    ok = [[False] * (columns + 1) for _ in range(rows + 1)]

    def step(i: int, j: int) -> tuple[int, int, str | None] | None:
        """The next (i, j) on a way to the end and the element it writes."""
        if i < rows and first[i] == star and ok[i + 1][j]:
            return i + 1, j, None
        if j < columns and second[j] == star and ok[i][j + 1]:
            return i, j + 1, None
        if i < rows and j < columns:
            if first[i] == star and ok[i][j + 1]:
                return i, j + 1, example(second[j])
            if second[j] == star and ok[i + 1][j]:
                return i + 1, j, example(first[i])
            if star not in (first[i], second[j]) and ok[i + 1][j + 1]:
                element = meet(first[i], second[j])
                if element is not None:
                    return i + 1, j + 1, element
        return None

    ok[rows][columns] = True
    for i in range(rows, -1, -1):
        for j in range(columns, -1, -1):
            ok[i][j] = ok[i][j] or step(i, j) is not None
    if not ok[0][0]:
        return None
    found: list[str] = []
    i = j = 0
    while (i, j) != (rows, columns):
        way = step(i, j)
        assert way is not None
        i, j, element = way
        if element is not None:
            found.append(element)
    return found
