# SPDX-License-Identifier: Apache-2.0
"""What measurements on drawn mixes have in common: how they are asked for, played side by side and told."""

from __future__ import annotations

import argparse
import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Protocol, TypeVar


class Told(Protocol):
    """Of one draw."""

    @property
    def number(self) -> int: ...

    @property
    def share_error(self) -> float:
        """Largest of any tenant, in points."""

    @property
    def words(self) -> str: ...


class ToldErrors(Told, Protocol):
    """And of the account."""

    @property
    def account_error(self) -> float:
        """Largest of any tenant, in points."""


Result = TypeVar("Result")
AnyTold = TypeVar("AnyTold", bound=Told)
ResultErrors = TypeVar("ResultErrors", bound=ToldErrors, covariant=True)


def parser_of(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worst", type=int, default=6, help="how many of the worst are named")
    parser.add_argument("--observe", action="store_true", help="nobody is held")
    return parser


def play_all(play: Callable[[int, int], Result], draws: Iterable[tuple[int, int]]) -> list[Result]:
    """``play`` each draw (seed and number), as many at once as there are processors."""
    with ProcessPoolExecutor(initializer=logging.disable, initargs=(logging.CRITICAL,)) as pool:
        return list(pool.map(play, *zip(*draws, strict=True)))


def tell_errors(results: Sequence[ToldErrors]) -> None:
    """Their distributions."""
    print(
        f"share error, points: mean {mean_error(results):.2f}, {spread_of([one.share_error for one in results])}"
    )
    print(f"account error, points: {spread_of([one.account_error for one in results])}")


class PlayDraw(Protocol[ResultErrors]):
    """Plays a draw of a seed."""

    def __call__(self, seed: int, number: int, *, is_enforced: bool) -> ResultErrors: ...


def main_of(description: str, play: PlayDraw[ResultErrors]) -> None:
    """The command line of a distribution: plays its draws, tells their errors and names the worst."""
    chosen = parser_of(description).parse_args()
    played = partial(play, is_enforced=not chosen.observe)
    results = play_all(played, [(chosen.seed, number) for number in range(chosen.draws)])
    tell_errors(results)
    tell_worst(results, chosen.worst, lambda one: f"account {one.account_error:.1f} off")


def mean_error(results: Sequence[Told]) -> float:
    """Of shares, in points."""
    return sum(one.share_error for one in results) / len(results)


def tell_worst(results: Iterable[AnyTold], most: int, told: Callable[[AnyTold], str]) -> None:
    """A line for each."""
    for one in sorted(results, key=lambda one: -one.share_error)[:most]:
        print(f"#{one.number}: {one.share_error:.1f} off, {told(one)}; {one.words}")


def spread_of(values: Sequence[float]) -> str:
    """Median, ninth of ten and worst, in words."""
    ordered = sorted(values)
    median, ninth = ordered[len(ordered) // 2], ordered[int(0.9 * len(ordered))]
    return f"median {median:.1f}, p90 {ninth:.1f}, worst {ordered[-1]:.1f}"


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))
