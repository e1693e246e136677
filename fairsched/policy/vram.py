# SPDX-License-Identifier: Apache-2.0
"""Detects tenants with more memory on a GPU than their limit allows, and chooses what is done about it (pure).

Problem. Where the kernel can refuse an allocation, nothing passes a limit but what was in flight at the same moment.
Elsewhere a tenant is found to have passed it, and memory cannot be taken back: it can be told to stop, or to end. What
it has goes up and down many times a second, and the sums are read while it does.

Approach. A tenant that was over at every look for ``confirm_ns`` is in an *episode*, which ends once it was within
its limit for ``clear_ns``. So whoever goes back and forth is in one episode, and is warned once. Only while it is
over is anything done, as ``on_vram_limit`` of the tenant whose limit it is says:

    warn       nothing
    hold       of the tenants below the limit, the one that has most is held as long as its class allows, runs for
               ``min_run_ns``, is held again
    terminate  the process that has most is to end; the next one is named only when that one has nothing left

Terms. *leaf*: a tenant that has processes; a limit is of a leaf or of a tenant above it, for all below together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fairsched.model import TenantGpu, TenantSpec, VramAction
from fairsched.policy.shares import ancestors, spec_for


class ProcessVram(NamedTuple):
    """What one process has on one GPU."""

    tenant: str
    """Leaf."""
    gpu: str
    pid: int
    bytes: int


@dataclass(frozen=True)
class VramParams:
    """After how long something is done."""

    confirm_ns: int = 1_500_000_000
    """Shorter is what the kernel was asked at the same moment, or what two looks took apart."""
    clear_ns: int = 5_000_000_000
    min_run_ns: int = 30_000_000


@dataclass(frozen=True)
class VramEpisode:
    """A tenant beyond its limit on one GPU."""

    tenant: str
    gpu: str
    used_bytes: int
    limit_bytes: int
    since_ns: int
    over_ns: int
    """When it was last over."""
    wish: VramAction
    leaf: str
    """Below the limit, the one that has most."""
    victim: int | None = None
    """TERMINATE: the process that is to end; kept until it has nothing left."""

    @property
    def is_over(self) -> bool:
        return self.used_bytes > self.limit_bytes


@dataclass(frozen=True)
class VramState:
    """What is remembered between two looks. Treat as immutable."""

    suspects: Mapping[TenantGpu, int] = field(default_factory=dict)
    """Over, and since when; not yet for long enough."""
    episodes: Mapping[TenantGpu, VramEpisode] = field(default_factory=dict)
    free_ns: Mapping[str, int] = field(default_factory=dict)
    """Leaves that were held: not again before."""


class VramHold(NamedTuple):
    """A hold that is due."""

    episode: VramEpisode
    deadline_ns: int


def combine(seen: Iterable[ProcessVram], listed: Iterable[ProcessVram]) -> tuple[ProcessVram, ...]:
    """What processes have where two have looked: on each GPU the larger of what the two say.

    ``seen`` is known to the byte and lacks what was there before; it may name a process in several tenants, and what
    ``listed`` has beyond it goes to the one that has most. Who is only ``listed`` is in the tenant named there.
    """
    found = list(seen)
    indexes: dict[tuple[int, str], list[int]] = {}
    for index, one in enumerate(found):
        indexes.setdefault((one.pid, one.gpu), []).append(index)
    for one in listed:
        same = indexes.get((one.pid, one.gpu), [])
        if not same:
            found.append(one)
            continue
        more = one.bytes - sum(found[index].bytes for index in same)
        most = max(same, key=lambda index: (found[index].bytes, found[index].tenant))
        if more > 0:
            found[most] = found[most]._replace(bytes=found[most].bytes + more)
    return tuple(found)


def sums(processes: Collection[ProcessVram], specs: Mapping[str, TenantSpec]) -> dict[TenantGpu, int]:
    """What every tenant with a limit has, those below it included; one that has nothing anywhere is left out."""
    found: dict[TenantGpu, int] = {}
    for one in processes:
        for name in ancestors(one.tenant):
            if spec_for(name, specs).vram_limit_bytes is not None:
                found[name, one.gpu] = found.get((name, one.gpu), 0) + one.bytes
    return found


def judge(
    processes: Collection[ProcessVram],
    state: VramState,
    specs: Mapping[str, TenantSpec],
    now_ns: int,
    params: VramParams,
    unendable: Collection[tuple[str, int]] = (),
) -> VramState:
    """Judge the memory of one look.

    ``unendable``: (tenant whose limit it is, process) that may not be ended for it, or cannot be.
    """
    used = sums(processes, specs)
    suspects: dict[TenantGpu, int] = {}
    episodes: dict[TenantGpu, VramEpisode] = {}
    for key in {*used, *state.episodes}:
        limit = spec_for(key[0], specs).vram_limit_bytes
        if limit is None:
            continue
        before, has = state.episodes.get(key), used.get(key, 0)
        since_ns = before.since_ns if before is not None else state.suspects.get(key, now_ns)
        over_ns = now_ns if has > limit else before.over_ns if before is not None else None
        if over_ns is None or now_ns - over_ns >= params.clear_ns:
            continue
        if before is None and now_ns - since_ns < params.confirm_ns:
            suspects[key] = since_ns
            continue
        below = [one for one in processes if one.gpu == key[1] and key[0] in ancestors(one.tenant)]
        episode = VramEpisode(
            tenant=key[0],
            gpu=key[1],
            used_bytes=has,
            limit_bytes=limit,
            since_ns=since_ns,
            over_ns=over_ns,
            wish=spec_for(key[0], specs).on_vram_limit,
            leaf=_leaf_with_most(below) or (before.leaf if before is not None else key[0]),
            victim=before.victim if before is not None else None,
        )
        episodes[key] = replace(episode, victim=_victim(episode, below, unendable))
    free_ns = {leaf: free for leaf, free in state.free_ns.items() if free > now_ns}
    return VramState(suspects, episodes, free_ns)


def _leaf_with_most(below: Collection[ProcessVram]) -> str | None:
    has: dict[str, int] = {}
    for one in below:
        has[one.tenant] = has.get(one.tenant, 0) + one.bytes
    return max(has, key=lambda leaf: (has[leaf], leaf), default=None)


def _victim(
    episode: VramEpisode, below: Collection[ProcessVram], unendable: Collection[tuple[str, int]]
) -> int | None:
    if episode.wish is not VramAction.TERMINATE:
        return None
    mine = [one for one in below if one.bytes > 0 and (episode.tenant, one.pid) not in unendable]
    if any(one.pid == episode.victim for one in mine):
        return episode.victim
    if not episode.is_over:
        return None
    most = max(mine, key=lambda one: (one.bytes, one.pid), default=None)
    return None if most is None else most.pid


def held_for_it(state: VramState, specs: Mapping[str, TenantSpec]) -> frozenset[str]:
    """Leaves that are held and let run in turn for a limit: the shares do not decide about them meanwhile."""
    return frozenset(
        one.leaf
        for one in state.episodes.values()
        if one.is_over and one.wish is VramAction.HOLD and not spec_for(one.leaf, specs).is_exempt
    )


def due_holds(
    state: VramState,
    specs: Mapping[str, TenantSpec],
    held: Collection[str],
    now_ns: int,
    params: VramParams,
) -> tuple[VramState, tuple[VramHold, ...]]:
    """What is to be held now; ``held``: leaves that are frozen now, by whomever. Asked at every tick."""
    leaves = held_for_it(state, specs)
    free_ns, holds = dict(state.free_ns), []
    for leaf in leaves & set(held):
        free_ns[leaf] = max(free_ns.get(leaf, 0), now_ns + params.min_run_ns)
    episodes = sorted(state.episodes.values(), key=lambda one: (one.since_ns, one.tenant, one.gpu))
    for one in episodes:
        if one.leaf not in leaves or not one.is_over or one.wish is not VramAction.HOLD:
            continue
        if one.leaf in held or now_ns < free_ns.get(one.leaf, 0):
            continue
        deadline_ns = now_ns + spec_for(one.leaf, specs).max_freeze_ns
        free_ns[one.leaf] = deadline_ns + params.min_run_ns
        holds.append(VramHold(one, deadline_ns))
    return replace(state, free_ns=free_ns), tuple(holds)
