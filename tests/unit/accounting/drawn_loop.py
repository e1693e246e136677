# SPDX-License-Identifier: Apache-2.0
"""The closed loop on GPUs and mixes drawn from published facts: what an account is worth where nobody tuned it.

Problem. The account was tuned on one GPU and tested on models that turn as it assumes. A change to it must be judged on
a distribution, and the real harness (benchmarks/) takes a minute for each draw.

Approach. :class:`tests.unit.accounting.closed_loop.ClosedLoop` with silicon of another nature: slices of other lengths,
unequal or jittering ones, kernels that run to completion, contexts in another order than that of their creation,
processes that arrive one by one. A draw is a function of a seed and a number and takes a second. All tenants always
want the GPU, so weights are what is due.

``python -m tests.unit.accounting.drawn_loop --draws 40 --seed 2`` prints the distribution of the share error and names
the worst draws; with ``--truth`` the law is told what everybody had, and what is left is its own error.
docs/decisions/0020-account-off-the-tuned-gpu.md has what was measured with it.

Not modelled: contexts side by side, copies, foreign contexts, slices that expire when contexts come and go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf import abi
from fairsched.gpu.trace import Switch
from fairsched.model import Snapshot, TenantClass, TenantSpec
from tests.unit.accounting.closed_loop import ClosedLoop, Pipeline, Steps, by_weight, pid_of
from tests.unit.accounting.draws import log_uniform, parser_of, play_all, tell_errors, tell_worst
from tests.unit.accounting.fake_probe import MS, SLOTS, FakeProbe
from tests.unit.policy.model_gpu import Simulation, Tenant
from tests.unit.policy.model_processes import Process

S = 1000 * MS
DOCUMENTED_SLICES_MS = (1.024, 2.0, 2.0972, 10.0, 30.0)
SWITCHES_US = (34, 50, 100, 200)
_LEAST_SLICE_NS = 50_000
_MOST_DUE = 0.75
"""Of what a tenant could use if it were alone: so that it wants all it is due."""

AccountOf = Callable[[FakeProbe, "Nature"], EbpfAccount]


@dataclass(frozen=True)
class Nature:
    """How a GPU takes turns."""

    slice_ns: int
    switch_ns: int
    jitter_ratio: float = 0.0
    """Each slice is longer or shorter by up to this, at random."""
    unequal_ratio: float = 0.0
    """Of two neighbours one has slices longer by this, the other shorter."""
    is_run_to_completion: bool = False
    is_shuffled: bool = False
    """Contexts do not stand in the order of their creation."""

    def __str__(self) -> str:
        marks = (" completes" if self.is_run_to_completion else "") + (
            " shuffled" if self.is_shuffled else ""
        )
        return (
            f"{self.slice_ns / MS:.3f} ms, switch {self.switch_ns // 1000} us, jitter {self.jitter_ratio:.2f}, "
            f"unequal {self.unequal_ratio:.2f}{marks}"
        )


ASSUMED = Nature(2 * MS, 100_000)
"""The one that the account assumes."""


@dataclass(frozen=True)
class Result:
    """Of one draw. Errors in points, of what the GPU delivered while it was measured."""

    number: int
    share_error: float
    """Largest of any tenant, against its weight."""
    account_error: float
    """Largest of any tenant: its share as the account has it, against the truth."""
    busy_ratio: float
    words: str


class LaunchBound(Steps):
    """Launches one kernel every ``launch_ns`` and waits for all of them in the end, as eager programs do."""

    def __init__(self, kernels: int, kernel_ns: int, jitter_ratio: float, launch_ns: int) -> None:
        super().__init__(kernels, kernel_ns, jitter_ratio, 300_000)
        self.launch_ns = launch_ns
        self.left = 0
        self.is_waiting = False
        """For the end of the step: what ends while it is frozen is seen at once when it runs again."""

    def on_start(self, sim: Simulation) -> None:
        self.left = self.kernels
        self._launch(sim)

    def _launch(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        self.left -= 1
        self.submitted_ns = sim.now  # of the last one: from there on it waits
        sim.launched(self, 1)
        self.submit(sim, sim.kernel_ns(self))
        if self.left:
            sim.program(self, sim.now + self.launch_ns, lambda: self._launch(sim))
        else:
            self.is_waiting = True

    def on_done(self, sim: Simulation) -> None:
        if self.is_waiting and not self.queue:
            self.is_waiting = False
            super().on_done(sim)


class Varied(Steps):
    """One step in five has four times as many launches of three times the length: prompts among tokens."""

    def on_start(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        more, longer = (4, 3) if sim.rng.random() < 0.2 else (1, 1)
        self.submitted_ns = sim.now
        sim.launched(self, self.kernels * more)
        self.submit(sim, longer * sum(sim.kernel_ns(self) for _ in range(self.kernels * more)))


@dataclass(frozen=True)
class Burst:
    """Of a program that starts: waits for so many launches, and for something else."""

    launches: int
    kernel_ns: int
    cpu_ns: int = 0
    """Until it asks whether they are done."""


def begin_with(process: Steps, bursts: Sequence[Burst]) -> None:
    """Programs begin with other work than they go on with: they load, warm up and measure."""
    go_on, left = (process.on_start, process.on_done), list(bursts)
    if isinstance(process, Pipeline):
        process.before = sum(burst.launches for burst in bursts)

    def on_start(sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        if not left:
            process.on_start, process.on_done = go_on  # type: ignore[method-assign]
            process.on_start(sim)
            return
        process.submitted_ns = sim.now
        sim.launched(process, left[0].launches)
        process.submit(sim, left[0].launches * left[0].kernel_ns)

    def on_done(sim: Simulation) -> None:
        ended_ns, burst = sim.now, left.pop(0)
        asks_ns = max(ended_ns, process.submitted_ns + burst.cpu_ns)

        def see() -> None:
            assert isinstance(sim, ClosedLoop)
            if isinstance(process, Pipeline):
                process.finished_ns.clear()  # it was no step
            waited_ns = ended_ns - process.submitted_ns if asks_ns == ended_ns else 1000
            sim.synced(process, waited_ns)
            sim.program(process, sim.now + 20_000, lambda: process.on_start(sim))

        sim.program(process, asks_ns + 10_000, see)

    process.on_start, process.on_done = on_start, on_done  # type: ignore[method-assign]


def draw_start(rng: random.Random) -> list[Burst]:
    """Half of them: kernels of no length, a load that keeps the CPU busy, a few of long kernels; as PyTorch does."""
    found: list[Burst] = []
    if rng.random() < 0.5:
        return found
    if rng.random() < 0.6:
        found += [Burst(1, 5_000)] * rng.randint(5, 40)
    if rng.random() < 0.6:
        found.append(Burst(rng.randint(10, 200), 20_000, round(rng.uniform(0.1, 1.0) * S)))
    if rng.random() < 0.6:
        found += [Burst(rng.randint(2, 10), round(rng.uniform(1, 4) * MS))] * rng.randint(1, 6)
    return found


class ModelTrace:
    """Of context switches, as NVIDIA's driver hands it out: who is last stays until somebody else comes."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._switches: list[Switch] = []
        self._resident: int | None = None

    def come(self, pid: int, left_ns: int, came_ns: int) -> None:
        """Whoever was there leaves."""
        if pid == self._resident:
            return
        if self._resident is not None:
            self._switches.append(Switch(left_ns, self._resident, self._resident, False))
        self._switches.append(Switch(came_ns, pid, pid, True))
        self._resident = pid

    @property
    def told_ns(self) -> int:
        return self._now_ns()

    def read(self) -> tuple[list[Switch], bool]:
        """See :class:`fairsched.gpu.trace.Trace`."""
        count = sum(switch.t_ns <= self._now_ns() for switch in self._switches)
        told, self._switches = self._switches[:count], self._switches[count:]
        return told, True


class DrawnLoop(ClosedLoop):
    """A closed loop on a GPU of another nature."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        nature: Nature,
        *,
        seed: int,
        is_enforced: bool = True,
        account_of: AccountOf | None = None,
        is_law_told: bool = False,
        is_traced: bool = False,
    ) -> None:
        """``is_law_told``: the law sees the truth and not the account, so that what is left is its own error.
        ``is_traced``: the GPU tells whose turn it is."""
        super().__init__(tenants, is_enforced=is_enforced, seed=seed)
        self.nature = nature
        self.probe.contexts_by_slot[:] = [abi.Ctx() for _ in range(SLOTS)]
        self.probe.edges.clear()
        if account_of is not None:
            self.account = account_of(self.probe, nature)
        for process in self.slots:
            self.at(process.start_ns, lambda one=process: self._arrive(one))  # type: ignore[misc]
        self._random = random.Random(f"gpu {seed}")
        runlist = self.gpus["gpu0"].runlist
        signs = {process: (1 if place % 2 else -1) for place, process in enumerate(runlist)}
        self._slices_ns = {
            process: nature.slice_ns * (1 + sign * nature.unequal_ratio) for process, sign in signs.items()
        }
        runlist.sort(key=lambda process: process.start_ns)
        if nature.is_shuffled:
            self._random.shuffle(runlist)
        self._is_law_told = is_law_told
        self.trace = ModelTrace(lambda: self.now)
        if is_traced:
            self.account.following.begin(0, self.trace)

    def _next(self, name: str) -> None:
        super()._next(name)
        gpu = self.gpus[name]
        if gpu.running is not None:
            self.trace.come(pid_of(self.slots[gpu.running]), self.now, gpu.chunk_start_ns)

    def _arrive(self, process: Process) -> None:
        slot = self.slots[process]
        self.probe.create(slot, pid_of(slot), self.groups[self.owner[process].name], t_ns=self.now)

    def snapshot(self) -> Snapshot:
        if not self._is_law_told:
            return super().snapshot()
        self.rows()
        return Simulation.snapshot(self)

    def switch_ns(self) -> int:
        return self.nature.switch_ns

    def slice_ns(self, process: Process) -> int:
        jitter = self._random.uniform(-self.nature.jitter_ratio, self.nature.jitter_ratio)
        return max(_LEAST_SLICE_NS, round(self._slices_ns[process] * (1 + jitter)))

    def until_switch_ns(self, process: Process, slice_left_ns: int) -> int:
        """To the end of the kernel, where none is interrupted; a graph (one launch) stops between two of its own."""
        assert isinstance(process, Steps)
        if not self.nature.is_run_to_completion or process.kernels == 1:
            return slice_left_ns
        return -(-slice_left_ns // process.kernel_ns) * process.kernel_ns


def draw_nature(rng: random.Random) -> Nature:
    slices = (*DOCUMENTED_SLICES_MS, log_uniform(rng, 0.5, 12))
    slice_ms = rng.choices(slices, (4, 2, 3, 2, 1, 3))[0]
    return Nature(
        round(slice_ms * MS),
        round(rng.choice((*SWITCHES_US, rng.uniform(0, 300))) * 1000),
        rng.choice((0.0, rng.uniform(0, 0.2))),
        rng.choice((0.0, 0.0, rng.uniform(0, 0.3))),
        rng.random() < 0.15,
        rng.random() < 0.4,
    )


def _draw_load(rng: random.Random, nature: Nature) -> tuple[Callable[[], Process], float]:
    """What makes a process, and the part of a GPU of its own that it would use."""
    spread = rng.uniform(0, 0.02) if rng.random() < 0.5 else rng.uniform(0.02, 0.3)
    kind = rng.choices(("decode", "trainer", "graph", "bound", "varied"), (4, 3, 1, 2, 1))[0]
    if kind == "decode":
        kernels, step_ns = round(log_uniform(rng, 5, 60)), log_uniform(rng, MS, 60 * MS)
        gap_ns = round(min(1.5 * MS, 0.08 * step_ns))
        return lambda: Steps(kernels, round(step_ns / kernels), spread, gap_ns), 0.9
    if kind == "trainer":
        kernels, depth = rng.randint(5, 40), rng.randint(2, 8)
        longest_ns = (5 if nature.is_run_to_completion else 2) * MS
        kernel_ns = round(max(MS / kernels, log_uniform(rng, 0.1 * MS, longest_ns)))
        return lambda: Pipeline(kernels, kernel_ns, spread, depth), 1.0
    if kind == "graph":
        graph_ns = round(rng.uniform(1, 20) * MS)
        return lambda: Steps(1, graph_ns, spread, round(0.05 * graph_ns)), 0.9
    if kind == "bound":
        kernels, kernel_ns = rng.randint(8, 40), round(rng.uniform(0.2, 1) * MS)
        launch_ns = round(rng.uniform(0.2, 1.4) * kernel_ns)
        return lambda: LaunchBound(kernels, kernel_ns, spread, launch_ns), 0.9 * min(1, kernel_ns / launch_ns)
    kernels, kernel_ns = rng.randint(5, 25), round(rng.uniform(0.15, 0.5) * MS)
    return lambda: Varied(kernels, kernel_ns, spread, 300_000), 0.85


def draw(seed: int, number: int) -> tuple[Nature, list[Tenant]]:
    """The same for the same arguments."""
    rng = random.Random(f"{seed}/{number}")
    nature = draw_nature(rng)
    while True:
        count = rng.choices(range(2, 9), (3, 4, 5, 3, 2, 2, 1))[0]
        rows = [
            (rng.randint(1, 9), rng.choice((1, 1, 1, 2, 3, 4)), *_draw_load(rng, nature))
            for _ in range(count)
        ]
        total = sum(weight for weight, *_ in rows)
        if all(weight / total <= _MOST_DUE * min(1, many * part) for weight, many, _, part in rows):
            break
    tenants = []
    for place, (weight, many, make, _) in enumerate(rows):
        processes = [make() for _ in range(many)]
        first_ns = rng.uniform(0, 3 * S)
        for process in processes:
            process.start_ns = round(first_ns + rng.uniform(0, 0.2 * S))
        kind = type(processes[0])
        spec = TenantSpec(
            f"{kind.__name__.lower()}-{place}",
            weight=weight,
            tenant_class=TenantClass.BATCH if kind is Pipeline else TenantClass.LATENCY,
        )
        tenants.append(Tenant(spec, processes))
    return nature, tenants


def play(
    seed: int,
    number: int,
    *,
    is_enforced: bool = True,
    account_of: AccountOf | None = None,
    is_law_told: bool = False,
    is_traced: bool = False,
    has_starts: bool = False,
    settle_ns: int = 8 * S,
    measured_ns: int = 10 * S,
) -> Result:
    """One draw; ``account_of`` makes another account than the daemon's. ``has_starts``: see :func:`draw_start`."""
    nature, tenants = draw(seed, number)
    if has_starts:
        rng = random.Random(f"{seed}/{number}/start")
        for tenant in tenants:
            bursts = draw_start(rng)
            for process in tenant.processes:
                assert isinstance(process, Steps)
                begin_with(process, bursts)
    loop = DrawnLoop(
        tenants,
        nature,
        seed=1000 + number,
        is_enforced=is_enforced,
        account_of=account_of,
        is_law_told=is_law_told,
        is_traced=is_traced,
    )
    return measured(loop, number, settle_ns, measured_ns)


def measured(loop: DrawnLoop, number: int, settle_ns: int, measured_ns: int) -> Result:
    """Run it to the end of the measured part."""
    begin, end = loop.marks([settle_ns], settle_ns + measured_ns)
    span, due = end.since(begin), by_weight(loop.tenants.values())
    return Result(
        number,
        max(span.share_errors(due).values()),
        max(span.account_errors().values()),
        span.whole_ns / measured_ns,
        f"[{loop.nature}] {span.words(due)}",
    )


def main() -> None:
    parser = parser_of("The account and the law on drawn GPUs and mixes.")
    parser.add_argument("--truth", action="store_true", help="the law sees the truth: its own error")
    parser.add_argument("--traced", action="store_true", help="the GPU tells whose turn it is")
    parser.add_argument("--starts", action="store_true", help="half of the programs begin with other work")
    chosen = parser.parse_args()
    played = partial(
        play,
        is_enforced=not chosen.observe,
        is_law_told=chosen.truth,
        is_traced=chosen.traced,
        has_starts=chosen.starts,
    )
    results = play_all(played, [(chosen.seed, number) for number in range(chosen.draws)])
    tell_errors(results)
    tell_worst(results, chosen.worst, lambda one: f"account {one.account_error:.1f} off")


if __name__ == "__main__":
    main()
