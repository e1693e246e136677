# SPDX-License-Identifier: Apache-2.0
"""What the processes of the model do with their GPU: decoders, deep queues, bursts, on and off."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.policy.model_gpu import Simulation

MS = 1_000_000
LAUNCHES_NS = 50_000
"""What submitting a step takes of the CPU."""


class Process(ABC):
    """One context on one GPU; subclasses say what its program does. ``now`` things, never waits."""

    def __init__(self, gpu: str = "gpu0", *, start_ns: int = 0, stop_ns: int | None = None) -> None:
        self.gpu = gpu
        self.start_ns = start_ns
        self.stop_ns = stop_ns
        self.queue: deque[int] = deque()
        """Remaining GPU time of each kernel in flight."""
        self.has_exited = False

    def submit(self, sim: Simulation, cost_ns: int) -> None:
        self.queue.append(cost_ns)
        sim.kick(self.gpu)
        sim.note_queued(self, cost_ns)

    @abstractmethod
    def on_start(self, sim: Simulation) -> None:
        """The program begins."""

    @abstractmethod
    def on_done(self, sim: Simulation) -> None:
        """A kernel completed and the program runs to see it."""


class ClosedLoop(Process):
    """A decoder: one token at a time, a CPU gap between two."""

    def __init__(self, token_ns: int = 20 * MS, gap_ns: int = MS, **where: object) -> None:
        super().__init__(**where)  # type: ignore[arg-type]
        self.token_ns = token_ns
        self.gap_ns = gap_ns

    def on_start(self, sim: Simulation) -> None:
        self.submit(sim, self.token_ns)

    def on_done(self, sim: Simulation) -> None:
        sim.program(self, sim.now + self.gap_ns, lambda: self.submit(sim, self.token_ns))


class DeepQueue(Process):
    """A trainer: keeps ``depth`` steps in flight."""

    def __init__(self, step_ns: int = 25 * MS, depth: int = 4, **where: object) -> None:
        super().__init__(**where)  # type: ignore[arg-type]
        self.step_ns = step_ns
        self.depth = depth

    def on_start(self, sim: Simulation) -> None:
        if len(self.queue) < self.depth:
            self.submit(sim, self.step_ns)
            sim.program(self, sim.now + LAUNCHES_NS, lambda: self.on_start(sim))

    on_done = on_start


class Bursty(Process):
    """Queues ``burst_ns`` at once, waits for all of it, then sleeps."""

    def __init__(
        self, burst_ns: int = 80 * MS, sleep_ns: int = 80 * MS, kernel_ns: int = 5 * MS, **where: object
    ) -> None:
        super().__init__(**where)  # type: ignore[arg-type]
        self.burst_ns, self.sleep_ns, self.kernel_ns = burst_ns, sleep_ns, kernel_ns

        self.is_waiting = False

    def on_start(self, sim: Simulation) -> None:
        self.is_waiting = True
        for _ in range(self.burst_ns // self.kernel_ns):
            self.submit(sim, self.kernel_ns)

    def on_done(self, sim: Simulation) -> None:
        if not self.queue and self.is_waiting:
            self.is_waiting = False
            sim.program(self, sim.now + self.sleep_ns, lambda: self.on_start(sim))


class OnOff(ClosedLoop):
    """A decoder that serves for ``on_ns`` and is silent for ``off_ns``."""

    def __init__(self, on_ns: int = 300 * MS, off_ns: int = 300 * MS, **loop: object) -> None:
        super().__init__(**loop)  # type: ignore[arg-type]
        self.on_ns, self.off_ns = on_ns, off_ns
        self.phase_ns = 0

    def on_done(self, sim: Simulation) -> None:
        pause = self.gap_ns
        if sim.now - self.phase_ns > self.on_ns:
            pause = self.off_ns
            self.phase_ns = sim.now + pause
        sim.program(self, sim.now + pause, lambda: self.submit(sim, self.token_ns))
