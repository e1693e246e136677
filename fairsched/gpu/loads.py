# SPDX-License-Identifier: Apache-2.0
"""Watches how busy each GPU is as a whole, as DCGM knows it, beside the loop (see base/beside.py for why).

Problem. NVML's samples tell who is on a GPU and undercount one that is idle part of the time. DCGM counts the time in
which a GPU's engine was active, and attributes it to nobody. Its host engine may be dead, hang, or come back.

Approach. One thread asks the readers in order (DCGM itself, then the page of dcgm-exporter); the first that answers is
believed, the others are not asked. One that fails is asked again later and later, so that DCGM is taken back when its
host engine is. The loop takes the last answer; one that is older than a few periods counts as none.

Terms: a *load* is the part of a period in which the GPU's engine was active; its age is how long ago that period ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fairsched.base.beside import Poller
from fairsched.gpu.nvml import Gpu

POLL_S = 1.0
STALE_PERIODS = 5
_LONGEST_PAUSE_S = 30.0

logger = logging.getLogger(__name__)


class LoadError(Exception):
    """Why a reader has no answer, for people."""


@dataclass(frozen=True)
class DeviceLoad:
    """The load of one GPU over one period."""

    active_ratio: float
    at_s: float
    """CLOCK_MONOTONIC at the end of the period."""
    what: str
    """Name of the field it was read from."""
    sm_active_ratio: float | None = None
    """How much of its multiprocessors had work, as a mean; for display."""


class LoadReader(Protocol):
    """Someone who can be asked."""

    name: str
    period_s: float
    """Between two answers that differ."""

    @property
    def where(self) -> str:
        """Who answers, for people."""

    def read(self) -> Mapping[str, DeviceLoad]:
        """Loads by :attr:`Gpu.load_name`; a GPU of which nothing is known yet is left out. Raises LoadError."""

    def close(self) -> None:
        """Let go of what it holds."""


@dataclass
class _Asked:
    reader: LoadReader
    due_s: float = 0.0
    failures: int = 0
    error: str | None = None
    loads: Mapping[str, DeviceLoad] = field(default_factory=dict)

    def ask(self, now_s: float) -> None:
        try:
            self.loads = self.reader.read()
        except LoadError as error:
            self.loads, self.failures = {}, self.failures + 1
            self.due_s = now_s + min(self.reader.period_s * 2**self.failures, _LONGEST_PAUSE_S)
            if str(error) != self.error:
                logger.warning("load=%s error=%r", self.reader.name, str(error))
            self.error = str(error)
            return
        if self.failures or not self.due_s:
            logger.info("load=%s where=%r", self.reader.name, self.reader.where)
        self.failures, self.error, self.due_s = 0, None, now_s + self.reader.period_s


class LoadWatch:
    """Asks in a thread from the start on. ``names`` (load_name) by slot; ``readers`` in the order of preference."""

    def __init__(self, readers: Sequence[LoadReader], names: Sequence[str], poll_s: float = POLL_S) -> None:
        self._asked = [_Asked(reader) for reader in readers]
        self._names, self._poll_s = _apart(names), poll_s
        self._changed = threading.Condition()
        self._polls = 0
        self._loads: Mapping[str, DeviceLoad] = {}
        self._believed: _Asked | None = None
        self._poller = Poller("loads", self.poll, lambda: self._poll_s, "load of the GPUs", "dcgm")
        self._poller.ask()

    def load(self, slot: int) -> float | None:
        """Part of the last period in which a GPU's engine was active; None: not known, or not any more."""
        found = self.reading(slot)
        return None if found is None else found.active_ratio

    def age_s(self, slot: int) -> float | None:
        """How long ago that period ended."""
        found = self.reading(slot)
        return None if found is None else max(0.0, time.monotonic() - found.at_s)

    def reading(self, slot: int) -> DeviceLoad | None:
        """The last reading of a GPU that is not too old."""
        believed = self._believed
        found = self._loads.get(self._names[slot]) if 0 <= slot < len(self._names) else None
        if believed is None or found is None:
            return None
        is_stale = time.monotonic() - found.at_s > STALE_PERIODS * believed.reader.period_s
        return None if is_stale else found

    def take_in(self, gpus: Sequence[Gpu]) -> None:
        """There are other GPUs, or more."""
        self._names = _apart(["" if gpu.is_gone else gpu.load_name for gpu in gpus])

    @property
    def is_live(self) -> bool:
        """Whether the load of any GPU is known now."""
        return any(self.reading(slot) is not None for slot in range(len(self._names)))

    @property
    def where(self) -> str | None:
        """Who answers now."""
        believed = self._believed
        return None if believed is None else believed.reader.where

    @property
    def period_s(self) -> float | None:
        """Of which the load is told, where DCGM itself answers; a page may be of any."""
        believed = self._believed
        return None if believed is None or believed.reader.period_s > POLL_S else believed.reader.period_s

    @property
    def error(self) -> str:
        """Why nobody answers."""
        return "; ".join(f"{asked.reader.name}: {asked.error}" for asked in self._asked if asked.error) or (
            "no load of any of these GPUs was told"
        )

    def wait_live(self, patience_s: float) -> bool:
        """Whether a load is known before the patience ends. Not for the loop."""
        end_s = time.monotonic() + patience_s
        with self._changed:
            while not self.is_live and (left_s := end_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
        return self.is_live

    def wait_asked(self, patience_s: float) -> bool:
        """Whether all readers were asked, or one answered, before the patience ends. Not for the loop."""
        with self._changed:
            return self._changed.wait_for(lambda: self._polls > 0, patience_s)

    def poll(self, now_s: float | None = None) -> None:
        """Ask once, whoever is due. The thread does; tests do, and say when."""
        now_s = time.monotonic() if now_s is None else now_s
        believed = None
        for asked in self._asked:
            if now_s >= asked.due_s:
                asked.ask(now_s)
            if asked.error is None and asked.due_s:
                believed = asked
                break
        with self._changed:
            self._believed, self._polls = believed, self._polls + 1
            self._loads = {} if believed is None else believed.loads
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, unless a reader keeps it; then what that holds is left behind, too."""
        if self._poller.close():
            for asked in self._asked:
                asked.reader.close()


def _apart(names: Sequence[str]) -> tuple[str, ...]:
    """Without those that several slots have: of two compute instances in one GPU instance nobody tells the load."""
    return tuple(name if names.count(name) == 1 else "" for name in names)
