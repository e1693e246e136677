# SPDX-License-Identifier: Apache-2.0
"""Each kind of rule matches on its evidence, and on nothing that is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from fairsched.guard.allow import Allow
from fairsched.guard.finding import Finding, Rule, verdicts
from fairsched.guard.rogue import RogueRules
from fairsched.guard.sample import GpuLoad, Process, Round, Sample
from fairsched.guard.thresholds import (
    Age,
    IdleHoarder,
    Miner,
    NoProgress,
    Orphan,
    Thresholds,
    UnknownImage,
)

GIB = 1 << 30
PROCESS = Process(
    pid=7,
    start_ticks=70,
    user="ann",
    tenant="research",
    cgroup="/gpu.slice/research/job",
    unit="train.service",
    image_digest="sha256:11",
    program_digest="sha256:22",
    started_s=0.0,
)
At = Callable[[float], Sample]


def at(share: float, rate: float, vram: float = 4.0, **about: Any) -> At:
    """Counters that have grown evenly since t = 0."""

    def sample(t: float) -> Sample:
        plain: dict[str, Any] = {
            "process": PROCESS,
            "gpu": "GPU-0",
            "vram_bytes": int(vram * GIB),
            "gpu_time_s": share * t,
            "launches": 5 + int(rate * t),
        }
        return Sample(**{**plain, **about})

    return sample


def look(times: Iterable[float], *of: At, busy: float | None = 0.0) -> list[Round]:
    return [Round(t, tuple(one(t) for one in of), {"GPU-0": GpuLoad(busy)}) for t in times]


def every(step: int, end: int, begin: int = 0) -> list[float]:
    return [float(t) for t in range(begin, end + 1, step)]


def feed(limits: Thresholds, rounds: Iterable[Round], allow: Allow | None = None) -> list[Finding]:
    """What matches at the end."""
    rules, found = RogueRules([Rule("rule", limits)], allow), list[Finding]()
    for moment in rounds:
        found = rules.feed(moment)
    return found


def score(limits: Thresholds, rounds: Iterable[Round]) -> float:
    return max((one.score for one in feed(limits, rounds)), default=0.0)


# no progress


def test_a_busy_gpu_with_flat_memory_is_little_evidence() -> None:
    (found,) = feed(NoProgress(), look(every(10, 300), at(0.97, 900)))
    assert (found.rule, found.kind, found.score, found.since_s) == ("rule", "no_progress", 0.3, 0.0)
    assert found.evidence[0] == "used at least 95% of the GPU for 5 min, its memory stayed at 4.0 GiB"
    assert score(NoProgress(), look(every(10, 290), at(0.97, 900))) == 0


def test_a_launch_that_does_not_end_is_much_evidence() -> None:
    (found,) = feed(NoProgress(), look(every(10, 300), at(1.0, 0)))
    assert found.score == 0.9
    assert (
        "launched nothing for 5 min (after 5 launches), and its GPU time grew by 5 min" in found.evidence[0]
    )
    assert score(NoProgress(), look(every(10, 300), at(0.5, 0))) == 0.9, "others have their turns"


@pytest.mark.parametrize(
    "about",
    [{"launches": None}, {"launches": 0}, {"gpu_time_s": None}, {"vram_bytes": None}, {"gpu_time_s": 9.0}],
)
def test_without_a_sight_of_launches_memory_or_time_none_is_open(about: dict[str, Any]) -> None:
    """An MPS server has its clients' time and never launches."""
    assert score(NoProgress(), look(every(10, 600), at(1.0, 0, **about))) < 0.9


def test_one_launch_may_be_all_that_a_server_ever_runs() -> None:
    (found,) = feed(NoProgress(), look(every(10, 600), at(1.0, 0, is_serving=True)))
    assert found.score == 0.45
    assert "it listens for others" in found.evidence[2]
    assert score(NoProgress(), look(every(10, 600), at(1.0, 0, is_serving=False))) == 0.9


def test_a_launch_is_open_for_long_where_others_of_it_have_ended_sooner() -> None:
    """It runs kernels of 250 s; the one after t = 1000 does not end."""

    def kernels(t: float) -> Sample:
        return at(1.0, 0, launches=5 + int(min(t, 1000.0)) // 250)(t)

    assert score(NoProgress(), look(every(10, 1480), kernels)) == 0.3, "busy, and not twice as long as usual"
    assert score(NoProgress(), look(every(10, 1510), kernels)) == 0.9


def test_who_is_stopped_cannot_launch() -> None:
    assert score(NoProgress(), look(every(10, 600), at(1.0, 0, is_paused=True))) == 0.3
    assert score(NoProgress(), look(every(10, 600), at(1.0, 0, is_paused=False))) == 0.9


def test_memory_that_changes_is_progress() -> None:
    def grows(t: float) -> Sample:
        return at(0.99, 900, 4.0 + t / 1000)(t)

    assert feed(NoProgress(), look(every(10, 900), grows)) == []


def test_a_gap_is_no_time_that_was_seen() -> None:
    times = every(10, 200) + every(10, 590, 400)
    assert feed(NoProgress(), look(times, at(0.99, 900))) == []
    assert feed(NoProgress(), look([0.0, 1000.0], at(0.99, 900))) == [], "the first interval, too"
    assert score(NoProgress(), look(every(30, 300), at(0.99, 900))) == 0.3


def test_a_counter_that_begins_anew_ends_the_streak() -> None:
    def anew(t: float) -> Sample:
        return at(0.99, 0)(t if t < 200 else t - 190)

    assert feed(NoProgress(), look(every(10, 490), anew)) == []

    def launches_anew(t: float) -> Sample:
        return at(0.99, 0, launches=900 if t < 200 else 3)(t)

    assert feed(NoProgress(), look(every(10, 490), launches_anew)) == []


def test_one_that_was_away_begins_anew_and_so_does_another_of_its_pid() -> None:
    rounds = look(every(10, 400), at(0.99, 900))
    rounds[20] = Round(rounds[20].t_s, ())
    assert feed(NoProgress(), rounds) == []
    other = at(0.99, 900, process=replace(PROCESS, start_ticks=71))
    assert feed(NoProgress(), look(every(10, 200), at(0.99, 900)) + look(every(10, 400, 210), other)) == []


def test_a_clock_that_is_set_back_is_a_gap_and_blinds_nobody() -> None:
    back = [Round(one.t_s - 3600.0, one.samples, one.gpus) for one in look(every(10, 300), at(1.0, 0))]
    assert score(NoProgress(), [*look([0.0, 10.0], at(1.0, 0)), *back]) == 0.9
    assert feed(NoProgress(), [*look(every(10, 290), at(1.0, 0)), *back[:2]]) == []


def test_a_round_that_is_not_later_is_left_out() -> None:
    rounds = look([*every(10, 300), 300.0], at(0.97, 900))
    assert feed(NoProgress(), rounds) == []
    assert feed(NoProgress(), [*rounds, *look([310.0], at(0.97, 900))])


# orphan, age, image


def test_an_orphan_that_stays_one() -> None:
    assert score(Orphan(), look(every(10, 30), at(0, 0, is_orphan=True))) == 0.25
    assert score(Orphan(), look(every(10, 20), at(0, 0, is_orphan=True))) == 0
    for known in (None, False):
        assert score(Orphan(), look(every(10, 90), at(0, 0, is_orphan=known))) == 0


def test_age() -> None:
    assert score(Age(for_s=100), look([0.0, 100.0], at(0, 0))) == 0.15
    assert score(Age(for_s=100), look([0.0, 99.0], at(0, 0))) == 0
    assert score(Age(for_s=100), look([500.0], at(0, 0, process=replace(PROCESS, started_s=None)))) == 0


def test_an_image_is_unknown_only_to_one_who_has_a_list() -> None:
    assert score(UnknownImage(known=("sha256:33",)), look([0.0], at(0, 0))) == 0.7
    assert score(UnknownImage(known=("sha256:11",)), look([0.0], at(0, 0))) == 0
    assert score(UnknownImage(), look([0.0], at(0, 0))) == 0
    bare = at(0, 0, process=replace(PROCESS, image_digest=None, image="evil:latest"))
    assert score(UnknownImage(known=("sha256:33",)), look([0.0], bare)) == 0


# idle hoarder


def begun(started_s: float | None) -> Process:
    return replace(PROCESS, started_s=started_s)


def idle(idle_s: float, launches: int = 9, **about: Any) -> At:
    return at(0, 0, idle_s=idle_s, launches=launches, **about)


def test_one_that_has_worked_may_rest_longer_than_one_that_never_has() -> None:
    times = every(10, 60)
    assert score(IdleHoarder(), look(times, idle(7200))) == 0.5
    assert score(IdleHoarder(), look(times, idle(7200, 0, process=begun(-7500)))) == 0.8
    for started_s in (-86400, None):
        old = idle(7200, 0, process=begun(started_s))
        assert score(IdleHoarder(), look(times, old)) == 0.5, "it may have worked before it was counted"
    assert score(IdleHoarder(), look(times, idle(15 * 3600))) == 0.8
    assert score(IdleHoarder(), look(times, idle(7100))) == 0
    assert score(IdleHoarder(), look(times, idle(9e9, vram_bytes=GIB // 2))) == 0


@pytest.mark.parametrize("about", [{"idle_s": None}, {"vram_bytes": None}])
def test_what_is_not_known_is_not_idle(about: dict[str, Any]) -> None:
    assert score(IdleHoarder(), look(every(10, 60), at(0, 0, **{"idle_s": 1e6, **about}))) == 0


def test_a_server_waits_for_requests() -> None:
    times = every(10, 60)
    (found,) = feed(IdleHoarder(), look(times, idle(20 * 3600, is_serving=True)))
    assert (found.score, found.evidence[1]) == (0.2, "it listens for others: a server waits for requests")
    assert score(IdleHoarder(), look(times, idle(20 * 3600, is_serving=False))) == 0.8


def test_who_was_stopped_has_not_idled_meanwhile() -> None:
    def until(t_s: float) -> At:
        return lambda t: idle(20 * 3600 + t, is_paused=t < t_s)(t)

    assert score(IdleHoarder(), look(every(60, 7200), until(1e9))) == 0
    assert score(IdleHoarder(), look(every(60, 7200), until(600))) == 0, "less than two hours since"
    assert score(IdleHoarder(), look(every(60, 8400), until(600))) == 0.5


def test_load_that_nobody_explains_may_be_its_own() -> None:
    times = every(10, 60)
    assert score(IdleHoarder(), look(times, idle(1e6), busy=0.5)) == 0
    assert score(IdleHoarder(), look(times, idle(1e6), busy=None)) == 0
    other = at(0.5, 100, process=replace(PROCESS, pid=8))
    assert score(IdleHoarder(), look(times, idle(1e6), other, busy=0.55)) == 0.8
    assert score(IdleHoarder(), look(times[:3], idle(1e6))) == 0, "not watched for long enough"


# miner

POOL = {"remote_ports": (3333,)}


def miner(rate: float = 100, **about: Any) -> list[Round]:
    return look(every(10, 310), at(0.97, rate, 2.0, **about))


def named(command: str) -> dict[str, Any]:
    return {"process": replace(PROCESS, command=command)}


def test_a_miner_needs_two_kinds_of_evidence() -> None:
    assert score(Miner(), miner()) == 0.1
    assert score(Miner(), look([0.0], at(0, 0, **POOL))) == 0.2
    assert score(Miner(), look([0.0], at(0, 0, **named("./xmrig -o x")))) == 0.2
    assert score(Miner(), miner(**POOL)) == pytest.approx(0.8)
    assert score(Miner(), look([0.0], at(0, 0, **POOL, **named("a -o stratum+tcp://x:1")))) == pytest.approx(
        0.8
    )
    assert score(Miner(), miner(**POOL, **named("/x/lolMiner"))) == pytest.approx(0.96)


@pytest.mark.parametrize("port", [443, 80, 22])
def test_a_port_that_everybody_uses_proves_nothing_even_if_configured(port: int) -> None:
    limits = Miner(ports=(port,))
    assert score(limits, look([0.0], at(0, 0, remote_ports=(port,)))) == 0


@pytest.mark.parametrize(
    "command",
    [
        "python process_miner.py",
        "t-rex.py --pool mean",
        "python x.py --algo ppo",
        "python -m my-xmrig-study",
        "xmrna-seq",
        "python detect.py --model rigel",
        "/srv/ann/xmrig/bin/python detect.py",
        "./bench --baseline gminer",
    ],
)
def test_words_of_honest_work(command: str) -> None:
    assert score(Miner(), look([0.0], at(0, 0, **named(command)))) == 0


@pytest.mark.parametrize("command", ["/opt/xmr-stak -c x", "xmr-anything", "x stratum2+ssl://pool:443"])
def test_words_of_a_miner(command: str) -> None:
    assert score(Miner(), look([0.0], at(0, 0, **named(command)))) == 0.2


def test_a_hidden_miner_is_not_told_from_a_benchmark() -> None:
    """What the rules cannot do is kept as it is said."""
    assert score(Miner(), miner(remote_ports=(443,))) < 0.6
    slow = look(
        every(10, 600), at(0.3, 100, 2.0, remote_ports=(443,), **named("./kworker -o stratum+tcp://x"))
    )
    assert score(Miner(), slow) < 0.6


def test_uneven_large_idle_or_growing_is_no_miners_shape() -> None:
    def uneven(t: float) -> Sample:
        return at(0.97, 0, 2.0, launches=int(100 * t + (400 if t % 20 else 0)))(t)

    assert score(Miner(), look(every(10, 400), uneven)) == 0
    assert score(Miner(), look(every(10, 400), at(0.97, 100, 20.0))) == 0
    assert score(Miner(), look(every(10, 400), at(0.5, 100, 2.0))) == 0
    assert score(Miner(), look(every(10, 400), at(0.97, 0, 2.0))) == 0
    assert score(Miner(), look(every(10, 400), lambda t: at(0.97, 100, 2 + t / 5000)(t))) == 0


def test_circumstances_alone_accuse_nobody() -> None:
    orphan, age, busy = Orphan(), Age(for_s=1), NoProgress()
    rules = [Rule("o", orphan), Rule("a", age), Rule("n", busy), Rule("m", Miner())]
    found = list[Finding]()
    judge = RogueRules(rules)
    for moment in look(every(10, 400), at(0.99, 900, 20.0, is_orphan=True, remote_ports=(7777,))):
        found = judge.feed(moment)
    assert len(found) == 4
    assert verdicts(found)[0].score == 0.55
    strong = [*found[1:], replace(found[0], score=0.5)]
    assert verdicts(strong)[0].score > 0.6, "with one that is more than that they count"


def test_kinds_add_up_and_gpus_and_rules_of_a_kind_do_not() -> None:
    def finding(rule: str, kind: str, value: float, gpu: str = "GPU-0") -> Finding:
        return Finding(rule, kind, PROCESS, gpu, value, (), 0.0)

    (one,) = verdicts(
        [finding("a", "age", 0.5), finding("b", "age", 0.4), finding("c", "orphan", 0.5, "GPU-1")]
    )
    assert one.score == 0.75
    (one,) = verdicts([finding("a", "no_progress", 0.3, f"GPU-{n}") for n in range(8)])
    assert one.score == 0.3


@pytest.mark.parametrize(
    "allow",
    [
        Allow(cgroups=("/gpu.slice/research",)),
        Allow(cgroups=("/gpu.slice/research/job/",)),
        Allow(units=("train.service",)),
        Allow(images=("sha256:11",)),
        Allow(programs=("sha256:22",)),
    ],
)
def test_whoever_is_allowed_is_not_accused(allow: Allow) -> None:
    assert feed(Age(for_s=1), look([0.0, 100.0], at(0, 0)), allow) == []


@pytest.mark.parametrize(
    "allow",
    [
        Allow(cgroups=("/gpu.slice/res", "/gpu.slice/research/job/x", "gpu.slice")),
        Allow(units=("train", "train.service.x")),
        Allow(images=("sha256:1", "sha256:22")),
        Allow(programs=("python", "ann", "sha256:11")),
    ],
)
def test_a_prefix_of_a_name_allows_nobody(allow: Allow) -> None:
    assert feed(Age(for_s=1), look([0.0, 100.0], at(0, 0)), allow)


def test_what_is_not_known_is_on_no_list() -> None:
    bare = Process(pid=1, start_ticks=1)
    assert Allow(("/",), ("None", ""), ("", "None"), ("",)).why(bare) is None


def test_one_that_is_allowed_still_explains_load() -> None:
    other = at(0.9, 100, process=replace(PROCESS, pid=8, cgroup="/ok"))
    hoarder = idle(1e6)
    found = feed(IdleHoarder(), look(every(10, 60), hoarder, other, busy=0.9), Allow(cgroups=("/ok",)))
    assert [one.process.pid for one in found] == [7]
