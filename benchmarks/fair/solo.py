# SPDX-License-Identifier: Apache-2.0
"""Plays each load alone on the GPU, because only then is it known what sharing costs its steps.

Problem. Twenty tenants of a scenario are two loads, and every policy needs the same figures of them.

Approach. A leaf's loads alone on the scenario's GPUs, nobody scheduling, for a moment: without neighbours each second
is as the other. Once for every GPU, load and seed that differ; what was played is kept until the command ends. Left
out where scenarios are played beside each other (nothing is timed finely in them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.fair import stage
from benchmarks.fair.against import Figures
from benchmarks.fair.measures import measure
from benchmarks.fair.scenario import Play, Scenario, Tenant

SECONDS = 2.0
SETTLE_S = 0.5
_LEAF = "alone"
_Key = tuple[Any, ...]
Player = Callable[[Play, int, Path], Figures]


def is_wanted(play: Play) -> bool:
    """Whether its steps are timed."""
    return not play.scenario.beside_others


def _key(play: Play, leaf: Tenant, seed: int) -> _Key:
    return play.scenario.gpus, leaf.loads, seed


def keys(plays: Iterable[tuple[Play, int]]) -> set[_Key]:
    """What is played alone for these scenarios and seeds."""
    return {
        _key(play, leaf, seed) for play, seed in plays if is_wanted(play) for leaf in play.leaves().values()
    }


def alone(play: Play, leaf: str) -> Play:
    """The scenario with this leaf and nobody else, from the start to the end and owed everything."""
    scenario = play.scenario
    tenant = Tenant(loads=play.leaves()[leaf].loads)
    return Play(
        play.name, Scenario(seconds=SECONDS, settle_s=SETTLE_S, gpus=scenario.gpus, tenants={_LEAF: tenant})
    )


def perform(play: Play, seed: int, build_dir: Path) -> Figures:
    """Measured: what the one leaf of ``alone`` got."""
    recording = stage.play(play, "none", seed, SECONDS, build_dir=build_dir)
    figures: Figures = measure(recording).to_dict()["leaves"][_LEAF]
    return figures


class Solos:
    """By leaf of a scenario, what its steps take alone."""

    def __init__(self, player: Player = perform) -> None:
        self._player = player
        self._known: dict[_Key, Figures] = {}

    def of(self, play: Play, seed: int, build_dir: Path) -> dict[str, Figures]:
        """Empty where steps are not timed."""
        if not is_wanted(play):
            return {}
        found = {}
        for name, leaf in play.leaves().items():
            key = _key(play, leaf, seed)
            if key not in self._known:
                self._known[key] = self._player(alone(play, name), seed, build_dir)
            found[name] = self._known[key]
        return found
