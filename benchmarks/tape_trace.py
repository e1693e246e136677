# SPDX-License-Identifier: Apache-2.0
"""The trace of context switches on a tape: what was read of it in each call.

On the tape it is a list of [GPU, whether it was whole, [switch, ...]]; a trace that was lost has None and why instead.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any

from fairsched.accounting.engine import Engine
from fairsched.accounting.follow import Following
from fairsched.gpu.trace import Switch, Trace, TraceLost


class RecordedFollowing(Following):
    """Writes down what is read."""

    def __init__(self, engines: Mapping[int, Engine]) -> None:
        super().__init__(engines)
        self._told: list[list[Any]] = []

    def begin(self, gpu: int, trace: Trace) -> None:
        super().begin(gpu, _Recorded(gpu, trace, self._told))

    def take(self) -> list[list[Any]]:
        """Since the last time."""
        told = list(self._told)
        self._told.clear()
        return told


class _Recorded:
    def __init__(self, gpu: int, trace: Trace, told: list[list[Any]]) -> None:
        self._gpu, self._trace, self._told = gpu, trace, told

    def read(self) -> tuple[list[Switch], bool]:
        try:
            switches, is_whole = self._trace.read()
        except TraceLost as error:
            self._told.append([self._gpu, None, str(error)])
            raise
        if switches or not is_whole:
            self._told.append([self._gpu, is_whole, [list(switch) for switch in switches]])
        return switches, is_whole


class ReplayedTraces:
    """Gives an account what a tape has."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._told: dict[int, deque[tuple[bool | None, Any]]] = defaultdict(deque)

    def put(self, told: Iterable[list[Any]]) -> None:
        """What the next reads tell."""
        for gpu, is_whole, what in told:
            self._told[gpu].append((is_whole, what))
            if gpu not in self._following.gpus:
                self._following.begin(gpu, _Replayed(self._told[gpu]))


class _Replayed:
    def __init__(self, told: deque[tuple[bool | None, Any]]) -> None:
        self._told = told

    def read(self) -> tuple[list[Switch], bool]:
        if not self._told:
            return [], True
        is_whole, what = self._told.popleft()
        if is_whole is None:
            raise TraceLost(what)
        return [Switch(*fields) for fields in what], is_whole
