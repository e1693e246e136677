# SPDX-License-Identifier: Apache-2.0
"""Reads the traces of context switches into the engines that follow them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Set

from fairsched.accounting.engine import Engine
from fairsched.gpu.trace import Trace, TraceLost

logger = logging.getLogger(__name__)


class Following:
    """By GPU (slot): its trace."""

    def __init__(self, engines: Mapping[int, Engine]) -> None:
        self._engines = engines
        self._traces: dict[int, Trace] = {}
        self._read_ns = 0

    @property
    def gpus(self) -> set[int]:
        """Whose trace is read."""
        return set(self._traces)

    def begin(self, gpu: int, trace: Trace) -> None:
        """From now on this tells whose turn it is there."""
        self._traces[gpu] = trace

    def end(self, gpu: int) -> None:
        """From now on turns are replayed there. Harmless where they are."""
        if self._traces.pop(gpu, None) is not None and gpu in self._engines:
            self._engines[gpu].replay.lose(is_for_good=True)

    def read(self, up_to_ns: int | None = None) -> None:
        """Take what has come of each; one that is lost is no longer followed.

        ``up_to_ns``: no more has to be known. Each read stops the driver for all, on every GPU, and a flood of edges is
        taken in by many portions, most of them of a time that has been read.
        """
        if up_to_ns is not None and up_to_ns < self._read_ns:
            return
        self._read_ns = time.monotonic_ns()
        for gpu, trace in list(self._traces.items()):
            try:
                switches, is_whole = trace.read()
            except TraceLost as error:
                logger.warning("trace=lost gpu=%d error=%r", gpu, str(error))
                self.end(gpu)
                continue
            if gpu in self._engines:
                turns = self._engines[gpu].replay
                if not is_whole:
                    turns.lose()
                turns.feed(switches, trace.told_ns)

    def hold(self, cgroup_ids: Set[int], now_ns: int, *, by_others: bool) -> None:
        """See :class:`fairsched.accounting.strangers.Strangers`."""
        for engine in self._engines.values():
            engine.strangers.hold(cgroup_ids, now_ns, by_others=by_others)

    def thaw(self, cgroup_ids: Set[int], now_ns: int) -> None:
        """These cgroups run again."""
        for engine in self._engines.values():
            engine.strangers.thaw(cgroup_ids, now_ns)
