# SPDX-License-Identifier: Apache-2.0
"""What all rivals share: the setup they are given, what a law is, and the loop that carries it out.

Problem. The laws are to be judged by what they decide, so everything around them must be the same, and none may leave a
tenant held, whatever becomes of it or of the harness.

Approach. A law is pure: it is told the time and a reading and answers with actions; it also says when it wants to be
asked again. The loop waits for that moment and for signals in one call, so a SIGTERM is never missed; the kernel sends
one when the parent dies. Whoever leaves the loop, by whatever way, lets everybody go.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fairsched.errors import FairschedError

_PR_SET_PDEATHSIG = 1
_ENDS = (signal.SIGTERM, signal.SIGINT)


class RivalError(FairschedError):
    """The rival cannot be run as asked."""


@dataclass(frozen=True)
class Tenant:
    """A leaf of the scenario."""

    leaf: str
    cgroup: str
    """Absolute directory."""
    owner: int
    """The tag its contexts carry in the engine's truth."""
    weight_ratio: float
    """Its entitlement when all want the GPU."""
    quota_ratio: float | None
    gpus: tuple[int, ...]

    @property
    def limit_ratio(self) -> float:
        """Where a cap acts."""
        return self.weight_ratio if self.quota_ratio is None else self.quota_ratio


@dataclass(frozen=True)
class Setup:
    """What the harness says."""

    sim_dir: Path
    held_log: Path
    tenants: tuple[Tenant, ...]


def read_setup(argument: str) -> Setup:
    """The setup itself, or a file with it: hundreds of tenants do not fit into an argument."""
    if argument.lstrip().startswith("{"):
        return parse_setup(argument)
    try:
        return parse_setup(Path(argument).read_text(encoding="utf-8"))
    except OSError as error:
        raise RivalError(f"SETUP_JSON: {error}", remedy="give a JSON object, or a file with one") from error


def parse_setup(text: str) -> Setup:
    """Raises RivalError that names the key."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RivalError(f"SETUP_JSON: not JSON: {error}", remedy="give one JSON object") from error
    _check_keys(data, Setup, "SETUP_JSON")
    if not isinstance(data["tenants"], list) or not data["tenants"]:
        raise RivalError("SETUP_JSON: tenants: a list with at least one is needed", remedy="name the leaves")
    tenants = tuple(_parse_tenant(one, f"SETUP_JSON: tenants.{n}") for n, one in enumerate(data["tenants"]))
    for key in ("leaf", "owner"):
        if len({getattr(tenant, key) for tenant in tenants}) < len(tenants):
            raise RivalError(f"SETUP_JSON: tenants: two have the same {key}", remedy="make each unique")
    return Setup(Path(data["sim_dir"]), Path(data["held_log"]), tenants)


def _parse_tenant(data: Any, where: str) -> Tenant:
    _check_keys(data, Tenant, where)
    for key in ("weight_ratio", "quota_ratio"):
        value = data[key]
        is_absent = value is None and key == "quota_ratio"
        if not is_absent and not (isinstance(value, (int, float)) and 0 <= value <= 1):
            raise RivalError(f"{where}.{key}: {value!r} is no ratio", remedy="give a number from 0 to 1")
    if not isinstance(data["owner"], int) or data["owner"] <= 0:
        raise RivalError(f"{where}.owner: {data['owner']!r} is no tag", remedy="give its FAIRSCHED_SIM_OWNER")
    if not os.path.isabs(data["cgroup"]):
        raise RivalError(f"{where}.cgroup: {data['cgroup']!r} is relative", remedy="give the whole path")
    if not data["gpus"] or not all(isinstance(gpu, int) and gpu >= 0 for gpu in data["gpus"]):
        raise RivalError(f"{where}.gpus: at least one index is needed", remedy="give a list like [0]")
    return Tenant(**{**data, "gpus": tuple(data["gpus"])})


def _check_keys(data: Any, kind: Any, where: str) -> None:
    wanted = {field.name for field in fields(kind)}
    if not isinstance(data, dict):
        raise RivalError(f"{where}: not an object", remedy=f"give the keys {', '.join(sorted(wanted))}")
    for key in sorted(wanted ^ set(data)):
        what = "is missing" if key in wanted else "is not known"
        raise RivalError(f"{where}: {key} {what}", remedy=f"the keys are {', '.join(sorted(wanted))}")


@dataclass(frozen=True)
class Action:
    """What a law wants done. To hold who is held already is to hold those who were not there before."""

    leaf: str
    is_hold: bool


ReadingT = TypeVar("ReadingT")
ReadingT_contra = TypeVar("ReadingT_contra", contravariant=True)


class Law(Protocol[ReadingT_contra]):
    """The pure part of a rival."""

    next_ns: int
    """When it wants to be asked again."""

    def needs_reading(self, now_ns: int) -> bool:
        """Whether a step at this moment looks at the reading; None will do otherwise."""

    def step(self, now_ns: int, reading: ReadingT_contra | None) -> list[Action]:
        """What to do now, in this order."""


def next_tick_ns(start_ns: int, period_ns: int, now_ns: int) -> int:
    """The first multiple of the period after ``now_ns``; ticks that were missed are not made up for."""
    return start_ns + ((now_ns - start_ns) // period_ns + 1) * period_ns


def keep_signals() -> None:
    """From here on only :func:`wait_for_end` sees SIGTERM and SIGINT."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)


def die_with_parent() -> None:
    """SIGTERM when the thread that started us ends. Raises RivalError when that has happened already."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise RivalError("the parent is gone", remedy="start it from a process that stays")


def wait_for_end(until_ns: int) -> bool:
    """Whether we were asked to end by then."""
    left_s = (until_ns - time.monotonic_ns()) / 1e9
    info = signal.sigtimedwait(_ENDS, max(0.0, left_s))
    # After an interruption at the very end of the wait the answer is no signal of ours.
    return info is not None and info.si_signo in _ENDS


def control(
    law: Law[ReadingT],
    read: Callable[[], ReadingT],
    act: Callable[[Action], None],
    tell_ready: Callable[[], None],
) -> None:
    """Carry the law out until we are asked to end."""
    is_ready = False
    while True:
        now_ns = time.monotonic_ns()
        reading = read() if law.needs_reading(now_ns) else None
        for action in law.step(now_ns, reading):
            act(action)
        if not is_ready:
            tell_ready()
            is_ready = True
        if wait_for_end(law.next_ns):
            return
