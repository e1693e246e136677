# SPDX-License-Identifier: Apache-2.0
"""Filters of holders: ``user=alice vram>20G idle>30m name~^train orphan`` (pure).

A filter is terms with blanks between them, and all must hold. A term is a mark (``orphan``, ``zombie``; ``!orphan`` is
its contrary) or KEY OPERATOR VALUE. What is not known matches nothing, whichever way it is asked: a process is never
chosen because something is not known of it.

| key | operators | value |
|---|---|---|
| user, tenant, container, gpu, pid | = != | a word; several with commas: any of them |
| name | ~ !~ = != | a regular expression that is found in the command |
| vram | > < | 20G, 512M, bytes |
| age, idle | > < | 90s, 15m, 1h, 7d |

Quotes keep blanks in a value: ``name~"python train"``.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairsched.errors import FairschedError

if TYPE_CHECKING:
    from fairsched.reclaim.holder import Holder

MARKS = ("orphan", "zombie")
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TIMES_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h|d|w|)")
_TERM = re.compile(r"([a-z]+)(!=|!~|>=|<=|=|~|>|<)(.*)", re.DOTALL)
_WORDS = ("user", "tenant", "container", "gpu", "pid")


class FilterError(FairschedError):
    """A filter that cannot be understood; exit status 2."""

    exit_status = 2


@dataclass(frozen=True)
class Term:
    """One condition."""

    text: str
    """As it was written."""
    holds: Callable[[Holder], bool | None]
    """None: what it asks for is not known."""


@dataclass(frozen=True)
class Filter:
    """All of its terms must hold; without one everything passes."""

    terms: tuple[Term, ...] = ()

    def __call__(self, holder: Holder) -> bool:
        return all(term.holds(holder) is True for term in self.terms)

    def __str__(self) -> str:
        return " ".join(shlex.quote(term.text) if " " in term.text else term.text for term in self.terms)


def parse(text: str) -> Filter:
    """The filter of an expression. Raises FilterError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise FilterError(f"the filter {text[:60]!r}: {error}", remedy="close the quotes") from None
    return Filter(tuple(map(term, words)))


def term(word: str) -> Term:
    """One term. Raises FilterError."""
    bare = word.removeprefix("!")
    if bare in MARKS:
        wanted = bare == word
        return Term(word, lambda holder: _known(holder.has_mark(bare), lambda has: has is wanted))
    match = _TERM.fullmatch(word)
    if match is None:
        raise _unknown(word)
    key, how, value = match.groups()
    if key in _WORDS and how in ("=", "!="):
        names, is_in = frozenset(value.split(",")), how == "="
        return Term(word, lambda holder: _known(holder.words(key), lambda has: bool(has & names) is is_in))
    if key == "name" and how in ("~", "!~", "=", "!="):
        return Term(word, _named(word, value, is_pattern="~" in how, is_contrary=how[0] == "!"))
    if key == "vram" and how in (">", "<", ">=", "<="):
        return Term(
            word, _compared(how, _amount(word, value, _SIZE, _SIZES), lambda holder: holder.vram_bytes)
        )
    if key in ("age", "idle") and how in (">", "<", ">=", "<="):
        limit = _amount(word, value, _TIME, _TIMES_S)
        return Term(
            word, _compared(how, limit, lambda holder: holder.age_s if key == "age" else holder.idle_s)
        )
    raise _unknown(word)


def both(*filters: Filter | Sequence[Term]) -> Filter:
    """What passes all of them."""
    return Filter(
        tuple(one for some in filters for one in (some.terms if isinstance(some, Filter) else some))
    )


def _known(value: object, judge: Callable[..., bool]) -> bool | None:
    return None if value is None else judge(value)


def _named(word: str, value: str, *, is_pattern: bool, is_contrary: bool) -> Callable[[Holder], bool | None]:
    try:
        pattern = re.compile(value if is_pattern else re.escape(value))
    except (re.error, RecursionError, OverflowError) as error:
        raise FilterError(
            f"{word[:60]!r}: {error}", remedy="write a regular expression: name~^train"
        ) from None

    def holds(holder: Holder) -> bool | None:
        if holder.command is None:
            return None
        program = holder.command.partition(" ")[0]
        found = (
            pattern.search(holder.command) is not None
            if is_pattern
            else value in (program, program.rpartition("/")[2])
        )
        return found is not is_contrary

    return holds


_COMPARE = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}


def _compared(
    how: str, limit: float, read: Callable[[Holder], float | None]
) -> Callable[[Holder], bool | None]:
    compare = _COMPARE[how]
    return lambda holder: _known(read(holder), lambda value: bool(compare(value, limit)))


def _amount(word: str, value: str, form: re.Pattern[str], units: dict[str, int]) -> float:
    match = form.fullmatch(value.strip())
    if match is None:
        what = "a size: 20G, 512M" if units is _SIZES else "a time: 90s, 15m, 1h, 7d"
        raise FilterError(f"{word[:60]!r}: {value[:60]!r} is not {what}", remedy="see: fairsched ps --help")
    unit = match[2].upper() if units is _SIZES else match[2]
    return float(match[1]) * units[unit]


def _unknown(word: str) -> FilterError:
    return FilterError(
        f"the filter does not know {word[:60]!r}",
        remedy="write user= tenant= container= gpu= pid= name~ vram> age> idle> orphan zombie",
    )
