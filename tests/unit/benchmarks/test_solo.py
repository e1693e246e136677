# SPDX-License-Identifier: Apache-2.0
"""Each load is played alone once, as it is in the scenario and with nobody else."""

from __future__ import annotations

from pathlib import Path

from benchmarks.fair.against import Figures
from benchmarks.fair.scenario import Play, find, load
from benchmarks.fair.solo import Solos, alone, is_wanted, keys

WHERE = Path("/nowhere")


class Player:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.played: list[tuple[str, int]] = []

    def __call__(self, play: Play, seed: int, _build_dir: Path) -> Figures:
        (leaf,) = play.leaves().values()
        self.played.append((f"{leaf.loads[0].processes} x {leaf.loads[0].kernel_us:g} us", seed))
        return {"step_p50_ms": float(len(self.played))}


def shipped(name: str) -> Play:
    return load(find(Path(name)))


def test_who_is_alone_has_its_loads_and_the_gpu_and_no_limits() -> None:
    play = shipped("bursty-owner")
    made = alone(play, "train1")
    assert list(made.leaves()) == ["alone"]
    (leaf,) = made.leaves().values()
    assert leaf.loads == play.leaves()["train1"].loads
    assert made.scenario.gpus == play.scenario.gpus
    assert (leaf.quota, leaf.start_s, made.scenario.strangers) == (None, 0, ())


def test_a_load_is_played_once_for_each_seed_whoever_has_it() -> None:
    player = Player()
    solos = Solos(player)
    found = solos.of(shipped("seed-4"), 1, WHERE)
    assert player.played == [("1 x 480 us", 1), ("3 x 480 us", 1)]
    assert found["a"] is found["b"] is found["c"] and found["d"] != found["a"]
    assert solos.of(shipped("equal-4"), 1, WHERE)["d"] is found["a"], "another scenario has the same load"
    solos.of(shipped("seed-4"), 2, WHERE)
    assert len(player.played) == 4, "another seed has other kernels"
    plays = [(shipped(name), seed) for name, seed in (("seed-4", 1), ("equal-4", 1), ("seed-4", 2))]
    assert len(keys(plays)) == 4, "as many as were expected"


def test_what_is_played_beside_others_is_not_timed() -> None:
    player = Player()
    assert not is_wanted(shipped("nature-overlap"))
    assert Solos(player).of(shipped("nature-overlap"), 1, WHERE) == {}
    assert player.played == [] and keys([(shipped("nature-overlap"), 1)]) == set()


def test_the_headlines_and_who_is_bound_by_a_latency_are_timed() -> None:
    for name in ("seed-4", "weights-4211", "equal-4", "latency-vs-batch-1-3", "latency-vs-batch-3-1"):
        assert is_wanted(shipped(name))
