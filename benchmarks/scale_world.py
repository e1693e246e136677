# SPDX-License-Identifier: Apache-2.0
"""GPUs and the programs that use them, as a model: who submits and who is done, when (pure).

Problem: a thousand decoders and the libcuda calls they make do not fit two cores, and the daemon never sees them: it
sees when each began to have work and when that was done.

Approach: only these moments are computed. A GPU turns round the contexts that have work, a slice each, and loses some
time at a switch. A program submits a step, waits for it, thinks for a moment, and submits the next. One that is frozen
notices nothing and submits nothing until it is let go; what it had submitted runs to its end. At most ``most_busy``
programs of a GPU have work at a time: the others come when it is their turn, in the order in which they asked.

Terms: a *step* is a number of launches that are waited for together. All times are nanoseconds of one clock.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

SLICE_NS = 2_000_000
SWITCH_NS = 100_000


@dataclass(frozen=True)
class Step:
    """What a program does over and over: the decoder of ``simgpu.PRESETS``."""

    launches: int = 20
    launch_ns: int = 250_000
    spread_ratio: float = 0.045
    """Of a whole step: 20 kernels with a spread of .2 each."""
    think_ns: int = 500_000


class Listener(Protocol):
    """Is told what happens, in order of time on each GPU."""

    def is_frozen(self, key: int) -> bool: ...

    def submitted(self, key: int, t_ns: int, launches: int) -> None: ...

    def completed(self, key: int, t_ns: int) -> None: ...


class Gpu:
    """Runs what is queued, a slice of each in turn."""

    def __init__(self, slice_ns: int = SLICE_NS, switch_ns: int = SWITCH_NS) -> None:
        self._slice_ns, self._switch_ns = slice_ns, switch_ns
        self._left_ns: dict[int, int] = {}
        self._circle: list[int] = []
        self._place = 0
        """Of the one that runs, in the circle."""
        self._now_ns = 0
        self._last: int | None = None
        self._slice_end_ns = 0

    @property
    def busy(self) -> int:
        """Contexts with work."""
        return len(self._circle)

    def submit(self, key: int, t_ns: int, work_ns: int) -> None:
        """One step of a context that has none. Call :meth:`advance` to ``t_ns`` first."""
        self._left_ns[key] = work_ns
        place = next((i for i, other in enumerate(self._circle) if other > key), len(self._circle))
        self._circle.insert(place, key)
        if len(self._circle) == 1:
            self._place = 0
            self._begin(max(t_ns, self._now_ns))
        elif place <= self._place:
            self._place += 1

    def advance(self, t_ns: int) -> tuple[int, int] | None:
        """Run up to ``t_ns``, or to the first step that is done before: (when, whose)."""
        while self._circle:
            key = self._circle[self._place]
            end_ns = min(self._now_ns + self._left_ns[key], self._slice_end_ns)
            if end_ns > t_ns:
                self._left_ns[key] -= max(0, t_ns - self._now_ns)
                self._now_ns = max(self._now_ns, t_ns)
                return None
            self._left_ns[key] -= end_ns - self._now_ns
            self._now_ns = end_ns
            if not self._left_ns[key]:
                del self._left_ns[key], self._circle[self._place]
                if self._circle:
                    self._place %= len(self._circle)
                    self._begin(end_ns)
                return end_ns, key
            self._place = (self._place + 1) % len(self._circle)
            self._begin(end_ns)
        self._now_ns = max(self._now_ns, t_ns)
        return None

    def next_ns(self) -> int | None:
        """When the running slice ends, by which a step may be done; None = nothing runs."""
        if not self._circle:
            return None
        return min(self._now_ns + self._left_ns[self._circle[self._place]], self._slice_end_ns)

    def _begin(self, t_ns: int) -> None:
        key = self._circle[self._place]
        cost_ns = 0 if self._last in (None, key) else self._switch_ns
        self._last = key
        self._now_ns = t_ns + cost_ns
        self._slice_end_ns = self._now_ns + self._slice_ns


class World:
    """Programs 0, 1, ... on GPUs, program ``i`` on GPU ``i % gpus``. Time is what :meth:`advance` is told."""

    def __init__(
        self,
        programs: int,
        gpus: int,
        listener: Listener,
        *,
        start_ns: int,
        most_busy: int,
        step: Step | None = None,
        seed: int = 1,
    ) -> None:
        self._gpus = [Gpu() for _ in range(gpus)]
        self._listener = listener
        self._step = step or Step()
        self._most_busy = most_busy
        self._random = random.Random(seed)
        self._due: list[list[tuple[int, int]]] = [[] for _ in range(gpus)]
        """By GPU: (when, who) has thought enough and wants to submit."""
        self._asking: list[deque[int]] = [deque() for _ in range(gpus)]
        self._waiting: dict[int, Callable[[int], None]] = {}
        """Frozen programs, and how each goes on."""
        self.steps = 0
        self._is_warm = [False] * programs
        for key in range(programs):
            heapq.heappush(self._due[key % gpus], (start_ns, key))

    @property
    def waiting(self) -> int:
        """Programs that are frozen and would go on."""
        return len(self._waiting)

    def advance(self, now_ns: int) -> None:
        """Everything up to ``now_ns``."""
        for key in [key for key in self._waiting if not self._listener.is_frozen(key)]:
            self._waiting.pop(key)(now_ns)
        for number in range(len(self._gpus)):
            self._advance_gpu(number, now_ns)

    def next_ns(self) -> int | None:
        """When there may be something to do; None: only when somebody is let go."""
        moments = [due[0][0] for due in self._due if due]
        moments += [moment for gpu in self._gpus if (moment := gpu.next_ns()) is not None]
        return min(moments, default=None)

    def _advance_gpu(self, number: int, now_ns: int) -> None:
        gpu, due = self._gpus[number], self._due[number]
        while True:
            until_ns = min(now_ns, due[0][0]) if due else now_ns
            done = gpu.advance(until_ns)
            if done is not None:
                self._done(done[1], done[0])
                self._admit(number, done[0])
            elif due and due[0][0] <= now_ns:
                t_ns, key = heapq.heappop(due)
                self._asking[number].append(key)
                self._admit(number, t_ns)
            else:
                return

    def _admit(self, number: int, t_ns: int) -> None:
        asking, gpu = self._asking[number], self._gpus[number]
        while asking and gpu.busy < self._most_busy:
            key = asking.popleft()
            if self._listener.is_frozen(key):
                self._waiting[key] = lambda now_ns, key=key: self._ask(key, now_ns)  # type: ignore[misc]
            else:
                self._submit(key, t_ns)

    def _submit(self, key: int, t_ns: int) -> None:
        # The first step is short, as the first thing a program does to a GPU is: set up, and wait for that.
        launches = self._step.launches if self._is_warm[key] else 1
        self._is_warm[key] = True
        mean_ns = launches * self._step.launch_ns
        work_ns = max(mean_ns // 4, round(self._random.gauss(mean_ns, self._step.spread_ratio * mean_ns)))
        self._gpus[key % len(self._gpus)].submit(key, t_ns, work_ns)
        self._listener.submitted(key, t_ns, launches)

    def _done(self, key: int, t_ns: int) -> None:
        if self._listener.is_frozen(key):
            self._waiting[key] = lambda now_ns: self._go_on(key, now_ns)
        else:
            self._go_on(key, t_ns)

    def _go_on(self, key: int, t_ns: int) -> None:
        """It sees that its step is done."""
        self.steps += 1
        self._listener.completed(key, t_ns)
        self._ask(key, t_ns + self._step.think_ns)

    def _ask(self, key: int, t_ns: int) -> None:
        heapq.heappush(self._due[key % len(self._gpus)], (t_ns, key))
