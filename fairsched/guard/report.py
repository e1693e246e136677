# SPDX-License-Identifier: Apache-2.0
"""Defines what the guard tells of itself: limits, who is near or over, what is next, what was done (plain data).

Whoever runs a judge fills a :class:`GuardStatus` and writes :func:`to_plain` of it as JSON; whoever shows it reads it
back with :func:`from_plain`, from another process or version: keys that are not known are left out, those that are
missing have their defaults. Names in it are data: not printable, maybe.

Units: Unix seconds, bytes, counts. None = not known, or not meant.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from fairsched.guard.breach import Act, Breach, Subject, What

NEAR_RATIO = 0.8
"""From this part of a limit on a subject is near it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LimitText:
    """One limit, for people."""

    name: str
    per: str
    """``user``; of maintenance ``maintenance``."""
    of: tuple[str, ...] | None
    """None = every one of that kind."""
    bounds: tuple[str, ...]
    """``vram 20.0 GiB``, ``hours mon 08:00-18:00 (Europe/Berlin)``."""
    steps: str
    """``3 warnings, 5 min apart, then end after 10 min``."""


@dataclass(frozen=True, slots=True)
class SubjectUse:
    """How much of one limit one subject uses, now."""

    limit: str
    subject: Subject
    what: What
    gpu: str | None
    """UUID, where the limit is of one GPU; None = of all together."""
    used: float | None
    allowed: float | None
    is_least: bool = False
    """It may be more: of some processes the amount is not known."""
    is_over: bool = False
    since_s: float | None = None
    """Unix time; None = not over, and nothing is left of a time when it was."""
    warnings: int = 0
    next_act: Act | None = None
    next_s: float | None = None
    processes: int = 0

    @property
    def ratio(self) -> float | None:
        """Of what is allowed; None where no amount is meant, or nothing is allowed."""
        return None if self.used is None or not self.allowed else self.used / self.allowed

    @property
    def is_near(self) -> bool:
        return self.is_over or (self.ratio is not None and self.ratio >= NEAR_RATIO)


@dataclass(frozen=True, slots=True)
class Deed:
    """What was done, or would have been."""

    t_s: float
    limit: str
    subject: Subject
    what: What
    act: Act
    is_dry: bool
    """It was only said that it would be done."""
    text: str
    """What the breach said."""
    pids: tuple[int, ...] = ()
    tenants: tuple[str, ...] = ()
    outcome: str = ""
    """What came of it, or why it was not done."""

    @staticmethod
    def of(breach: Breach, t_s: float, *, is_dry: bool, outcome: str = "") -> Deed:
        """What `breach` asks for, at `t_s`."""
        pids = tuple(one.pid for one in breach.processes) if breach.act is Act.END else ()
        tenants = breach.tenants if breach.act is Act.HOLD else ()
        return Deed(
            t_s,
            breach.limit,
            breach.subject,
            breach.what,
            breach.act,
            is_dry,
            breach.text,
            pids,
            tenants,
            outcome,
        )


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """What the guard knows and does."""

    mode: str
    """off, dry_run or act: as it is configured."""
    t_s: float | None = None
    """Of the last round; None = none was seen yet."""
    rounds: int = 0
    """Seen since it began."""
    interval_s: float | None = None
    is_running: bool = False
    """Somebody looks all the time; otherwise this is one look, without what was counted before."""
    limits: tuple[LimitText, ...] = ()
    uses: tuple[SubjectUse, ...] = ()
    """Of every subject that is there or has used something today, the nearest to a limit first."""
    held: tuple[str, ...] = ()
    """Tenants that are slowed down now."""
    deeds: tuple[Deed, ...] = ()
    """The last ones, oldest first."""
    tape: str | None = None
    """File that rounds are recorded on; None = none."""
    notes: tuple[str, ...] = ()
    """Sentences a person must know: what is not there, what failed."""
    acts_as: str | None = None
    """dry_run or act: how the last round was carried out, which is dry_run too while the daemon's mode is; None = there
    was none."""


def to_plain(status: GuardStatus) -> dict[str, Any]:
    """As JSON has it."""
    plain = _plain(asdict(status))
    assert isinstance(plain, dict)
    return plain


def from_plain(plain: Any) -> GuardStatus:
    """Raises ValueError for what is none."""
    try:
        return _made(GuardStatus, plain)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"not a status of the guard: {error}") from None


def by_nearness(uses: Sequence[SubjectUse]) -> tuple[SubjectUse, ...]:
    """Those over first, then by how much of the limit is used."""
    return tuple(
        sorted(uses, key=lambda one: (not one.is_over, -(one.ratio or 0.0), one.limit, one.subject.name))
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


@cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _made(kind: type[T], plain: Any) -> T:
    if not isinstance(plain, dict):
        raise ValueError(f"{kind.__name__} is not a mapping")
    assert is_dataclass(kind)
    known = {one.name for one in fields(kind)}
    hints = _hints(kind)
    return kind(**{key: _value(hints[key], value) for key, value in plain.items() if key in known})


def _value(hint: Any, value: Any) -> Any:
    """`value` as `hint` has it. Raises ValueError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = [one for one in arguments if one is not types.NoneType]
        return _value(hint, value)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{value!r:.60} is not a list")
        return tuple(_value(arguments[0], one) for one in value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return _made(hint, value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{value!r:.60} is not {hint.__name__}")
    return value
