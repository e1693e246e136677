# SPDX-License-Identifier: Apache-2.0
"""The closed loop on drawn mixes with a tenant of long graphs: its account and share, and its neighbours' waits.

Problem. A graph is one launch that may take a tenth of a second, and a program has several of different lengths. What
is done about them (costs by graph, pacing) must be judged on a distribution of mixes, not on three of them.

Approach. A tenant ``long`` that replays graphs of 20 to 200 ms (one, two in turn, many, or some among plain launches),
beside a decoder and a trainer, and now and then a third neighbour; weights, depths and the GPU's nature are drawn. One
half of the draws has the GPU that the account assumes, the other half one out of :mod:`drawn_loop`.

``python -m tests.unit.accounting.long_loop --draws 40 --seed 1`` prints the distributions; ``--blind``: the probes do
not tell graphs apart. docs/decisions/0024-long-work.md has what was measured with it.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fairsched.model import TenantClass, TenantSpec
from tests.unit.accounting.closed_loop import WAKE_NS, ClosedLoop, Pipeline, Steps, by_weight
from tests.unit.accounting.drawn_loop import ASSUMED, DrawnLoop, Nature, S, draw_nature
from tests.unit.accounting.draws import parser_of, play_all, spread_of, tell_worst
from tests.unit.accounting.fake_probe import MS
from tests.unit.policy.model_gpu import Simulation, Tenant
from tests.unit.policy.model_processes import Process

LENGTHS_MS = (20, 50, 100, 200)
_MOST_DUE = 0.7


@dataclass(frozen=True)
class Piece:
    """One step: a graph (its handle), or so many plain launches (handle 0)."""

    graph: int
    launches: int
    mean_ns: int
    """Of the whole step."""


class Graphs(Steps):
    """Steps of several kinds, ``depth`` of them in flight, each proven when it is the oldest."""

    def __init__(
        self, pieces: Sequence[Piece], spread: float, gap_ns: int, depth: int, *, is_random: bool
    ) -> None:
        super().__init__(1, pieces[0].mean_ns, spread, gap_ns)
        self.pieces, self.depth, self.is_random = pieces, depth, is_random
        self.number = 0
        self.in_flight: deque[tuple[int, int]] = deque()
        """Kernels of each step still to run, and when it was submitted."""
        self.proven = 0
        self.sizes: deque[int] = deque()
        """Launches of each step that was not proven yet."""
        self.ended: deque[int] = deque()
        self.returned_ns = 0
        self.latencies: list[tuple[int, int]] = []

    def on_start(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        while len(self.sizes) < self.depth:
            piece = (
                sim.rng.choice(self.pieces) if self.is_random else self.pieces[self.number % len(self.pieces)]
            )
            self.number += 1
            sigma = self.jitter_ratio
            sim.launched(self, piece.launches, piece.graph)
            self.sizes.append(piece.launches)
            self.in_flight.append((1, sim.now))
            self.submit(sim, round(piece.mean_ns * sim.rng.lognormvariate(-sigma * sigma / 2, sigma)))

    def on_done(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        self.ended.append(sim.now)
        sim.program(self, sim.now + max(1, round(sim.rng.expovariate(1 / WAKE_NS))), lambda: self._seen(sim))

    def _seen(self, sim: ClosedLoop) -> None:
        ended_ns, (_, submitted_ns) = self.ended.popleft(), self.in_flight.popleft()
        self.latencies.append((sim.now, sim.now - submitted_ns))
        self.proven += self.sizes.popleft()
        waited_ns = max(1000, ended_ns - max(self.returned_ns, submitted_ns))
        sim.progressed(self, self.proven, waited_ns)
        self.returned_ns = sim.now
        sim.program(self, sim.now + 20_000 + self.gap_ns, lambda: self.on_start(sim))


class TimedSteps(Steps):
    """A decoder whose steps are timed."""

    def __init__(self, kernels: int, kernel_ns: int, jitter_ratio: float, gap_ns: int) -> None:
        super().__init__(kernels, kernel_ns, jitter_ratio, gap_ns)
        self.latencies: list[tuple[int, int]] = []

    def _seen(self, sim: ClosedLoop) -> None:
        self.latencies.append((sim.now, sim.now - self.submitted_ns))
        super()._seen(sim)


@dataclass(frozen=True)
class Result:
    """Of one draw. Errors in points of what the GPU delivered while it was measured."""

    number: int
    share_error: float
    account_error: float
    """Largest of any tenant: its share as the account has it, against the truth."""
    long_error: float
    """Of the long tenant's account, in percent of its own time; signed."""
    second_error: float
    """Of the same, the mean over single seconds of how far they are off, in percent of a second."""
    wait_p50: float
    wait_p99: float
    """Steps of the decoder over what they take alone."""
    busy: float
    words: str


def draw_long(rng: random.Random) -> tuple[list[Process], str]:
    kind = rng.choice(("one", "two", "many", "mixed"))
    spread = rng.choice((0.005, 0.02, rng.uniform(0.02, 0.2)))
    lengths = [rng.choice(LENGTHS_MS) for _ in range({"one": 1, "two": 2, "many": 6, "mixed": 1}[kind])]
    if kind == "two":
        lengths = rng.sample(LENGTHS_MS, 2)
    pieces = [Piece(0x1000 + 16 * place, 1, ms * MS) for place, ms in enumerate(lengths)]
    if kind == "mixed":
        pieces += [
            Piece(0, rng.choice((1, 1, 20)), rng.randint(2, 15) * MS) for _ in range(rng.randint(1, 3))
        ]
    depth, many = rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2))
    is_random = rng.random() < 0.5
    words = f"{kind} {'+'.join(map(str, lengths))} ms depth {depth} x{many}{' random' if is_random else ''}"
    return [Graphs(pieces, spread, MS, depth, is_random=is_random) for _ in range(many)], words


def draw(seed: int, number: int) -> tuple[Nature, list[Tenant], str]:
    """The same for the same arguments."""
    rng = random.Random(f"long {seed}/{number}")
    nature = ASSUMED if number % 2 == 0 else draw_nature(rng)
    long, words = draw_long(rng)
    kernels, step_ms = rng.randint(5, 40), rng.uniform(4, 30)
    decoder = TimedSteps(kernels, round(step_ms * MS / kernels), rng.uniform(0.02, 0.2), 500_000)
    rows: list[tuple[str, list[Process], TenantClass]] = [
        ("long", long, rng.choice((TenantClass.BATCH, TenantClass.LATENCY))),
        ("decode", [decoder], TenantClass.LATENCY),
        ("train", [Pipeline(rng.randint(5, 30), 500_000, 0.1, rng.randint(2, 4))], TenantClass.BATCH),
    ]
    if rng.random() < 0.3:
        rows.append(("other", [Steps(20, 250_000, 0.1, 500_000)], TenantClass.LATENCY))
    while True:
        weights = [rng.randint(1, 9) for _ in rows]
        if max(weights) / sum(weights) <= _MOST_DUE:
            break
    tenants = []
    for weight, (name, processes, tenant_class) in zip(weights, rows, strict=True):
        for process in processes:
            process.start_ns = round(rng.uniform(0, S))
        tenants.append(Tenant(TenantSpec(name, weight=weight, tenant_class=tenant_class), processes))
    return nature, tenants, words


def play(
    seed: int,
    number: int,
    *,
    is_enforced: bool = True,
    is_blind: bool = False,
    settle_ns: int = 8 * S,
    measured_ns: int = 20 * S,
) -> Result:
    nature, tenants, words = draw(seed, number)
    loop = DrawnLoop(tenants, nature, seed=1000 + number, is_enforced=is_enforced)
    loop.probe.knows_graphs = not is_blind
    marks = loop.marks(range(settle_ns, settle_ns + measured_ns, S), settle_ns + measured_ns)
    span, due = marks[-1].since(marks[0]), by_weight(tenants)
    decoder = tenants[1].processes[0]
    assert isinstance(decoder, TimedSteps)
    alone_ns = decoder.kernels * decoder.kernel_ns
    steps = sorted(took / alone_ns for at, took in decoder.latencies if at >= settle_ns)
    seconds = [
        abs(one.charged["long"] - one.had["long"]) / S
        for one in (end.since(begin) for begin, end in itertools.pairwise(marks))
    ]
    return Result(
        number,
        max(span.share_errors(due).values()),
        max(span.account_errors().values()),
        100 * (span.charged["long"] / max(1, span.had["long"]) - 1),
        100 * sum(seconds) / len(seconds),
        steps[len(steps) // 2],
        steps[int(0.99 * len(steps))],
        span.whole_ns / measured_ns,
        f"{words}; [{nature}] {span.words(due)}",
    )


def report(results: Sequence[Result]) -> list[str]:
    rows = {
        "share error, points": [one.share_error for one in results],
        "account error, points": [one.account_error for one in results],
        "account of long, %": [abs(one.long_error) for one in results],
        "the same by seconds, %": [one.second_error for one in results],
        "decoder's step, p50 / alone": [one.wait_p50 for one in results],
        "decoder's step, p99 / alone": [one.wait_p99 for one in results],
        "idle, %": [100 * (1 - one.busy) for one in results],
    }
    return [f"{name}: mean {sum(ones) / len(ones):.2f}, {spread_of(ones)}" for name, ones in rows.items()]


def split(length_ms: int, depth: int, seeds: Sequence[int] = (1, 2, 3, 4, 5)) -> str:
    """A row of docs/long-work.md: graphs of one length, ``depth`` of them in flight, of a tenant owed a fifth."""
    shares, steps, longest_ns, off = list[float](), list[float](), 0, list[float]()
    for seed in seeds:
        piece = Piece(0x1000, 1, length_ms * MS)
        decoder = TimedSteps(20, MS // 2, 0.1, MS // 2)
        tenants = [
            Tenant(
                TenantSpec("long", weight=1),
                [Graphs([piece], 0.01, 0, depth, is_random=False)],
                freeze_latency_ns=MS,
            ),
            Tenant(TenantSpec("decode", weight=2), [decoder]),
            Tenant(
                TenantSpec("train", weight=2, tenant_class=TenantClass.BATCH), [Pipeline(20, MS // 2, 0.1, 2)]
            ),
        ]
        loop = ClosedLoop(tenants, seed=seed)
        errors = loop.errors(6 * S, 26 * S)
        shares.append(loop.shares(6 * S, 26 * S)["long"])
        off.append(abs(errors["long"]))
        steps += [took / (10 * MS) for at, took in decoder.latencies if at >= 6 * S]
        longest_ns = max(longest_ns, loop.longest_hold_ns("long"))
    steps.sort()
    share, slowest = sum(shares) / len(shares), steps[int(0.99 * len(steps))]
    return (
        f"| {length_ms} ms | {depth} | {100 * share:.1f} % | {100 * max(off):.1f} % | {slowest:.1f} | "
        f"{longest_ns / S:.1f} s |"
    )


def main() -> None:
    parser = parser_of("The account and the law beside long graphs.")
    parser.add_argument("--split", action="store_true", help="the table of docs/long-work.md")
    parser.add_argument("--blind", action="store_true", help="graphs are not told apart")
    chosen = parser.parse_args()
    if chosen.split:
        logging.disable(logging.CRITICAL)
        print("\n".join(split(length_ms, depth) for depth in (1, 4) for length_ms in (10, 20, 50, 100, 200)))
        return
    played = partial(play, is_enforced=not chosen.observe, is_blind=chosen.blind)
    results = play_all(played, [(chosen.seed, number) for number in range(chosen.draws)])
    print("\n".join(report(results)))
    tell_worst(results, chosen.worst, lambda one: f"long's account {one.long_error:+.1f} %")


if __name__ == "__main__":
    main()
