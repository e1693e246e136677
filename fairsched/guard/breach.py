# SPDX-License-Identifier: Apache-2.0
"""Defines what limits say: who has too much of what, and what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fairsched.guard.sample import Process


class Per(str, Enum):
    """Whose use a limit adds up: each of these is a subject of its own."""

    USER = "user"
    GROUP = "group"
    TENANT = "tenant"
    PROJECT = "project"
    GPU = "gpu"


class What(str, Enum):
    """What is limited."""

    VRAM = "vram"
    CONTEXTS = "contexts"
    PROCESSES = "processes"
    GPU_SECONDS = "gpu_seconds_per_day"
    GPUS = "allowed_gpus"
    HOURS = "hours"
    MAINTENANCE = "maintenance"


class Act(str, Enum):
    """What is to be done, mildest first."""

    WARN = "warn"
    """Tell; nothing happens to anybody."""
    HOLD = "hold"
    """Give the subject's tenants less GPU time, where that hits nobody else."""
    END = "end"
    """Reclaim: SIGTERM, grace, and SIGKILL only if the limit says so."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose use is added up."""

    per: Per
    name: str
    """As people know it: a user's name, or its uid where it has none; a GPU's UUID."""
    uid: int | None = None
    """Of a user: what counts, for names are changed (None: not a user)."""

    @property
    def text(self) -> str:
        return f"{self.per.value} {self.name}"


@dataclass(frozen=True, slots=True)
class Breach:
    """One limit that one subject is over, now. There is one a round for as long as that is so."""

    limit: str
    """Name in the configuration."""
    subject: Subject
    what: What
    used: float | None
    """Bytes, a count, or seconds; None where no amount is meant (hours, GPUs, maintenance)."""
    allowed: float | None
    gpu: str | None
    """UUID, where the limit is of one GPU; None = of all together."""
    since_s: float
    """Unix time; the subject has been over since then, with shorter pauses than those that forgive."""
    warnings: int
    """Told so far, this one included."""
    is_news: bool
    """This round warns, or acts anew; otherwise it only goes on."""
    act: Act
    """What is due now."""
    next_act: Act | None
    """What comes if it goes on, and when."""
    next_s: float | None
    processes: tuple[Process, ...]
    """Whom END ends, in that order, no more than are needed; whose they are otherwise."""
    tenants: tuple[str, ...]
    """Whom HOLD slows down: those of which everybody belongs to the subject. Empty = nobody can be held alone."""
    text: str
    """A sentence with the figures, in plain English; names in it are data."""
