# SPDX-License-Identifier: Apache-2.0
"""Watches that nobody is held while the GPU is idle, whatever the account believes (pure).

Problem. A hold is for somebody who works. Where the account has a GPU busy with work that is not there (a process that
was stopped in mid-work, an end that nobody told of), the living are held for it, and no rule that asks the account can
find that out.

Approach. Evidence that does not come from the account, and that a tenant cannot make while it is held, since it would
have to keep the others from working:

* *load*: NVML's utilisation of the GPU is far below what the account claims that it worked, and somebody has open work
  of which nothing was heard for seconds: no launch, no completion. A load is told late and of parts of the time, so one
  window of it is no evidence: WINDOWS in a row are. It is none without such *silent* work either: launches that come
  slower than their kernels end leave a GPU idle, too, and its time is theirs all the same.
* *open work*: no context has any, as the programs in the kernel count.

When one of them contradicts the account while somebody is held, all holds on that GPU end, nobody is held there for
LET_GO_NS, and the silent work is over for the account. Quotas are kept: they hold although a GPU is idle.

What that can be worth (reckoned, not measured): who has two tenants may feign silent work with one, so that the other
is let go, for LET_GO_NS every three seconds at best, and only where the honest leave the GPU idle. That is a point or
two of a GPU at most.
"""

from __future__ import annotations

from typing import NamedTuple

WINDOW_NS = 1_500_000_000
WINDOWS = 2
GAP_RATIO = 0.4
"""Of a window: what is claimed beyond the load. The load of a sixth of a second is known every quarter of one, which is
off by some .1 where work comes and goes."""
_FEWEST_LOADS = 4
"""In a window of six."""
_HELD_RATIO = 0.25
"""Of a window, in which somebody must be held."""
_NOTHING_OPEN_NS = 500_000_000
"""A GPU that is idle between two steps is given away after 3 ms."""
LET_GO_NS = 100_000_000


class Look(NamedTuple):
    """One GPU since the look before."""

    interval_ns: int
    claimed_ns: int
    """GPU time that the account has charged, to anybody."""
    is_held: bool
    """Somebody is held for the sake of others there."""
    is_open: bool
    """Some context has work, as the programs count."""
    loads: tuple[float, ...]
    """What NVML has said meanwhile; none where it says nothing."""
    is_silent: bool
    """Some context has open work of which nothing was heard for seconds; asked for where :func:`is_due`."""


class Doubt(NamedTuple):
    """What is remembered of one GPU."""

    window_ns: int = 0
    claimed_ns: int = 0
    held_ns: int = 0
    loads: tuple[float, ...] = ()
    windows: int = 0
    """In a row, whose load is too low."""
    nothing_open_ns: int = 0
    at_ns: int = 0
    """When the account was last contradicted."""
    until_ns: int = 0
    """Nobody is held there before this moment."""
    times: int = 0
    """How often the account was contradicted."""
    said: str = ""
    """The numbers of the last time."""


def is_due(doubt: Doubt, interval_ns: int) -> bool:
    """Whether a look after ``interval_ns`` ends a window that may be the last one needed."""
    return doubt.windows >= WINDOWS - 1 and doubt.window_ns + interval_ns >= WINDOW_NS


def watch(look: Look, before: Doubt, now_ns: int) -> Doubt:
    """One look. ``times`` grows where the account is contradicted."""
    is_quiet = look.is_held and not look.is_open
    quiet_ns = before.nothing_open_ns + look.interval_ns if is_quiet else 0
    doubt = before._replace(
        window_ns=before.window_ns + look.interval_ns,
        claimed_ns=before.claimed_ns + look.claimed_ns,
        held_ns=before.held_ns + look.interval_ns * look.is_held,
        loads=before.loads + look.loads,
        nothing_open_ns=quiet_ns,
    )
    if quiet_ns >= _NOTHING_OPEN_NS:
        return _contradicted(doubt, f"nothing_open_ms={quiet_ns // 1_000_000}", now_ns)
    if doubt.window_ns < WINDOW_NS:
        return doubt
    said = _gap(doubt)
    windows = doubt.windows + 1 if said else 0
    if said and windows >= WINDOWS and look.is_silent:
        return _contradicted(doubt, said, now_ns)
    return begun_anew(doubt)._replace(windows=windows)


def _gap(doubt: Doubt) -> str:
    """The numbers of a window whose load is far below the claims; empty where it is not."""
    if len(doubt.loads) < _FEWEST_LOADS or doubt.held_ns < _HELD_RATIO * doubt.window_ns:
        return ""
    claimed, load = doubt.claimed_ns / doubt.window_ns, sum(doubt.loads) / len(doubt.loads)
    return f"claimed={claimed:.2f} load={load:.2f}" if claimed - load >= GAP_RATIO else ""


def _contradicted(doubt: Doubt, said: str, now_ns: int) -> Doubt:
    return begun_anew(doubt)._replace(
        at_ns=now_ns, until_ns=now_ns + LET_GO_NS, times=doubt.times + 1, said=said
    )


def begun_anew(doubt: Doubt) -> Doubt:
    """What was seen so far is not to be compared with what comes."""
    return doubt._replace(window_ns=0, claimed_ns=0, held_ns=0, loads=(), windows=0, nothing_open_ns=0)
