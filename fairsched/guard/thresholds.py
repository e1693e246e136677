# SPDX-License-Identifier: Apache-2.0
"""Defines what each kind of rule compares with: plain data, with the defaults that were tuned on simulated traces.

A score says how much a finding is worth, 0 to 1. Of independent findings on one process 1 - prod(1 - score) is made,
so scores are chosen by what may come together in an honest process: an old trainer that was started with nohup and
keeps its GPU busy (age, orphan, no_progress) stays below .6, an old server without a request at night (age, idle) too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

_GIB = 1 << 30
WELL_KNOWN = 1024
"""Ports below are of services that everybody uses: they prove nothing."""


@dataclass(frozen=True, slots=True)
class NoProgress:
    """Busy, and nothing changes. A good trainer looks so as well; one launch that never ends does not."""

    kind: ClassVar[str] = "no_progress"
    score: float = 0.9
    """Of a launch that stays open."""
    busy_score: float = 0.3
    """Of a GPU that is busy with memory that stays as it is."""
    serving_score: float = 0.45
    """Of a launch that stays open in a server: one kernel that reads requests from memory may be all that it runs."""
    usual: float = 2.0
    """A launch must be open so many times as long as the longest of that process that was seen to end."""
    load: float = 0.95
    open_load: float = 0.2
    """Of one with an open launch: others may have their turns beside it."""
    for_s: float = 300.0
    vram_change: float = 0.01
    """What still is flat, of the largest."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """Its parent is gone. So is that of each job that was started with nohup."""

    kind: ClassVar[str] = "orphan"
    score: float = 0.25
    for_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Age:
    """Has run for long."""

    kind: ClassVar[str] = "age"
    score: float = 0.15
    for_s: float = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class IdleHoarder:
    """Holds memory, and launches nothing."""

    kind: ClassVar[str] = "idle_hoarder"
    score: float = 0.8
    """Of one that has never launched, or idles for ``long_s``."""
    idle_score: float = 0.5
    """Of one that has worked before: a server may have no request at night."""
    serving_score: float = 0.2
    """Of one that waits for requests: nothing to do is no misuse."""
    for_s: float = 2 * 3600.0
    long_s: float = 14 * 3600.0
    vram_bytes: int = _GIB
    """One that holds less is let be."""
    start_s: float = 900.0
    """Idle since it began, but for this: else it may have worked before launches were counted."""
    watch_s: float = 30.0
    """So long the load of the GPU must be seen to be that of others."""
    slack: float = 0.1
    """Load that need not be explained."""


@dataclass(frozen=True, slots=True)
class UnknownImage:
    """Runs an image that the operator does not know. Without a list it matches nothing."""

    kind: ClassVar[str] = "unknown_image"
    score: float = 0.7
    known: tuple[str, ...] = ()
    """``sha256:...``."""


@dataclass(frozen=True, slots=True)
class Miner:
    """Two of: an even rate of launches with little memory, the port of a pool, the words of a miner."""

    kind: ClassVar[str] = "miner"
    score: float = 0.8
    """Of two kinds of evidence."""
    shape_score: float = 0.1
    """Of its shape alone: no_progress has counted most of that already."""
    hint_score: float = 0.2
    """Of a name or a port alone."""
    load: float = 0.8
    for_s: float = 300.0
    evenness: float = 0.03
    """Standard deviation of the rate of launches, of its mean."""
    vram_bytes: int = 8 * _GIB
    vram_change: float = 0.01
    ports: tuple[int, ...] = (3333, 4444, 7777, 10128, 14433, 14444, 20535, 20580, 45560, 45700)
    """Of pools, and of few others."""
    words: tuple[str, ...] = (
        r"stratum\d?\+(?:tcp|ssl|tls)://",
        r"^(?:\S*/)?(?:xmr(?:ig|-\w+)|ethminer|nbminer|lolminer|gminer|bminer|phoenixminer|teamredminer|srbminer"
        r"|ccminer|cgminer|bfgminer|rigel|wildrig|onezerominer)(?!\w)(?!\S*/)",
    )
    """Regular expressions for the command, in any case. A name counts as the program's alone."""


@dataclass(frozen=True, slots=True)
class Evasion:
    """One work under several names, together above what one may have."""

    kind: ClassVar[str] = "evasion"
    score: float = 0.7
    """Of one program or image that is connected to the same uncommon ports."""
    image_score: float = 0.2
    """Of one image alone: a base image is everybody's."""
    unlike_score: float = 0.4
    """Of one program whose commands differ: software that calls a server for licences looks so."""
    users: int = 3
    """Users or tenants, at least."""
    gpus: float = 1.0
    """GPUs that one may use on average; each is below, all of them together above."""
    for_s: float = 300.0
    # fmt: off
    common_ports: tuple[int, ...] = (
        1080, 2049, 2379, 3000, 3128, 3306, 4317, 4318, 5000, 5432, 5555, 5672, 6006, 6379, 6443,
        6817, 6818, 6819, 7000, 8000, 8080, 8081, 8265, 8443, 8786, 8787, 8888, 9000, 9090, 9092,
        9200, 10001, 11211, 27017, 29400, 29500,
    )
    # fmt: on
    """Of services that a site shares."""


Thresholds = NoProgress | Orphan | Age | IdleHoarder | UnknownImage | Miner | Evasion
KINDS: dict[str, type[Thresholds]] = {
    kind.kind: kind for kind in (NoProgress, Orphan, Age, IdleHoarder, UnknownImage, Miner, Evasion)
}
