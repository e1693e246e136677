# SPDX-License-Identifier: Apache-2.0
"""The trace of context switches on a tape: what was read of it in each call.

On the tape it is a list of [GPU, whether it was whole, [switch, ...], told_ns]; a trace that was lost has None and why
instead. Tapes of before November 27, 2026 have no told_ns: where a read told something, all was told up to the call.
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

    @property
    def told_ns(self) -> int:
        return self._trace.told_ns

    def read(self) -> tuple[list[Switch], bool]:
        try:
            switches, is_whole = self._trace.read()
        except TraceLost as error:
            self._told.append([self._gpu, None, str(error)])
            raise
        self._told.append([self._gpu, is_whole, [list(switch) for switch in switches], self._trace.told_ns])
        return switches, is_whole


class ReplayedTraces:
    """Gives an account what a tape has."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._told: dict[int, deque[tuple[bool | None, Any, int]]] = defaultdict(deque)

    def put(self, told: Iterable[list[Any]], now_ns: int) -> None:
        """What the next reads tell, in a call of then."""
        for gpu, is_whole, what, *told_ns in told:
            self._told[gpu].append((is_whole, what, told_ns[0] if told_ns else now_ns))
            if gpu not in self._following.gpus:
                self._following.begin(gpu, _Replayed(self._told[gpu]))


class _Replayed:
    def __init__(self, told: deque[tuple[bool | None, Any, int]]) -> None:
        self._told, self.told_ns = told, 0

    def read(self) -> tuple[list[Switch], bool]:
        if not self._told:
            return [], True
        is_whole, what, self.told_ns = self._told.popleft()
        if is_whole is None:
            raise TraceLost(what)
        return [Switch(*fields) for fields in what], is_whole
