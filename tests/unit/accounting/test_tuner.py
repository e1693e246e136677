# SPDX-License-Identifier: Apache-2.0
"""Which nature is found from a tape, when none is looked for, and that a tape says what was said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from fairsched.accounting import tuner as tuner_module
from fairsched.accounting.replay import Replay
from fairsched.accounting.tuner import POOR_HIT_RATIO, Fit, SliceTiming, Tape, Tuner, natures, play
from tests.unit.accounting import model
from tests.unit.accounting.model import MS, Gpu, Load, ModelEdge, Truth, replayed, worst_error
from tests.unit.accounting.random_calls import BEFORE, DOUBT, SURE, act, steps

S = 1000 * MS
ASSUMED = (2 * MS, 100_000)
LAUNCHES = 10
ANCHORS = 500
"""Of each burst."""
MIXES: dict[str, Sequence[Load]] = {
    "two decoders and one that comes and goes": (Load(20, 1, 0.02), Load(7, 0.5, 0.02), Load(200, 200, 0.1)),
    "decoder, prefill and one that comes and goes": (Load(17, 1, 0.02), Load(33, 5, 0.02), Load(80, 80, 0.1)),
}
ONE_MIX = next(iter(MIXES))
OTHER_NATURES = [(6 * MS, 100_000), (MS, 100_000), (2 * MS, 0)]


class Watched:
    """A replay and its tuner, told what an account would tell them."""

    def __init__(self, contexts: int, nature: SliceTiming = ASSUMED) -> None:
        self.replay = Replay(*nature)
        self.tuner = Tuner(self.replay)
        self.adopted_ns: list[int] = []
        self._next_ns = 0
        for context in range(contexts):
            self.replay.add(context, (context,))

    def hear(self, edge: ModelEdge, step_ns: int = 200 * MS) -> None:
        if edge.t_ns >= self._next_ns:
            self._next_ns = edge.t_ns + step_ns
            if self.tuner.step(edge.t_ns):
                self.adopted_ns.append(edge.t_ns)
        if edge.is_open:
            self.replay.open(edge.context, edge.t_ns)
            self._note("begin", edge.context)
        else:
            self.replay.close(edge.context, edge.t_ns)
            self._note("burst", edge.context, LAUNCHES, True)

    def _note(self, name: str, *arguments: object) -> None:
        if self.replay.tape is not None:
            self.replay.tape.note(name, *arguments)

    @property
    def nature(self) -> SliceTiming:
        return self.replay.slice_ns, self.replay.switch_ns


class Hardware:
    """The model with another nature."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def truth(self, nature: SliceTiming, mix: str, seconds: int, seed: int = 1) -> Truth:
        self._monkeypatch.setattr(model, "SLICE_NS", nature[0])
        self._monkeypatch.setattr(model, "SWITCH_NS", nature[1])
        return Gpu(MIXES[mix], seed).run(seconds * S)


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> Hardware:
    return Hardware(monkeypatch)


def watched(truth: Truth, nature: SliceTiming = ASSUMED) -> Watched:
    found = Watched(len(truth.exec_ns), nature)
    for edge in truth.edges:
        found.hear(edge)
    return found


def account_error(truth: Truth, nature: SliceTiming) -> float:
    slice_ns, switch_ns = nature
    return worst_error(truth, replayed(truth, slice_ns=slice_ns, switch_ns=switch_ns))


# ---- what is found ----


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("nature", OTHER_NATURES)
def test_another_nature_is_recognised_and_the_account_is_right_after_it(
    hardware: Hardware, nature: SliceTiming, mix: str
) -> None:
    found = watched(hardware.truth(nature, mix, 20))
    assert len(found.adopted_ns) == 1
    assert found.nature == pytest.approx(nature, rel=0.15, abs=100_000)
    later = hardware.truth(nature, mix, 10, seed=5)
    assert account_error(later, ASSUMED) > 0.05, "or there was nothing to find"
    assert account_error(later, found.nature) < 0.02


def test_what_was_found_is_on_record(hardware: Hardware) -> None:
    found = watched(hardware.truth((6 * MS, 100_000), ONE_MIX, 20))
    last = found.tuner.last
    assert last is not None
    assert (last.present, last.adopted) == (ASSUMED, found.nature)
    assert last.present_fit is not None
    assert last.present_fit.hit_ratio < POOR_HIT_RATIO < last.best[0][1].hit_ratio
    assert "now=2000/100us" in str(last)
    assert "adopted=6000/" in str(last)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("nature", [ASSUMED, *OTHER_NATURES])
def test_with_the_right_nature_nothing_is_taped_searched_or_adopted(
    hardware: Hardware, nature: SliceTiming, mix: str
) -> None:
    found = watched(hardware.truth(nature, mix, 10), nature)
    assert found.nature == nature
    assert (found.adopted_ns, found.tuner.last, found.tuner.is_settled) == ([], None, False)
    assert found.replay.tape is None


def given_fits(monkeypatch: pytest.MonkeyPatch, tuner: Tuner, fits: dict[SliceTiming, Fit | None]) -> bool:
    """Search with these results, all others hopeless; whether another nature was adopted."""
    monkeypatch.setattr(tuner_module, "fit", lambda _tape, *nature: fits.get(nature, Fit(5.0, 0.0, ANCHORS)))
    tuner.replay.hit_ratio = 0.0
    tuner.step(0)
    fill(tuner.replay)
    return any(tuner.step(0) for _ in range(len(natures()) + 1))


def fill(replay: Replay, calls: int = tuner_module._TAPE_CALLS) -> None:
    assert replay.tape is not None
    for _ in range(calls):
        replay.tape.note("begin", "a")


OTHER = (6 * MS, 100_000)


@pytest.mark.parametrize(
    ("now", "other", "is_adopted"),
    [
        (Fit(0.2, 0.4, ANCHORS), Fit(0.1, 0.9, ANCHORS), True),
        (Fit(0.2, 0.4, ANCHORS), Fit(0.16, 0.69, ANCHORS), False),  # not hit often
        (Fit(0.2, 0.4, ANCHORS), Fit(0.14, 0.65, ANCHORS), True),  # but scatters far less
        (Fit(0.2, 0.4, ANCHORS), Fit(0.1, 0.69, ANCHORS), True),
        (Fit(0.2, 0.4, ANCHORS), Fit(0.1, 0.59, ANCHORS), False),
        (Fit(0.2, 0.5, 30), Fit(0.2, 0.77, 30), False),  # of forty natures one is lucky
        (Fit(0.2, 0.5, 30), Fit(0.17, 0.77, 30), True),  # and scatters less
        (Fit(0.2, 0.4, 30), Fit(0.2, 0.77, 30), True),
        (Fit(0.2, 0.75, ANCHORS), Fit(0.16, 0.84, ANCHORS), False),  # hardly more often
        (Fit(0.2, 0.75, 28), Fit(0.15, 0.71, 28), True),  # but scatters far less: switches that cost nothing
        (Fit(0.2, 0.77, 28), Fit(0.15, 0.71, 28), False),
        (Fit(0.2, 0.72, 28), Fit(0.15, 0.69, 28), False),
        (Fit(0.2, 0.75, 19), Fit(0.15, 0.71, 19), False),
        (Fit(0.2, 0.4, ANCHORS), Fit(0.24, 0.9, ANCHORS), False),  # the same work costs more different times
        (Fit(0.2, 0.4, 10), Fit(0.1, 0.7, 10), True),
        (Fit(0.2, 0.5, 10), Fit(0.1, 0.7, 10), False),  # of ten anchors two are chance
        (Fit(0.1, 0.4, ANCHORS), None, False),
    ],
)
def test_another_nature_must_be_hit_often_and_more_often_and_scatter_no_more(
    monkeypatch: pytest.MonkeyPatch, now: Fit, other: Fit | None, is_adopted: bool
) -> None:
    tuner = Tuner(Replay(*ASSUMED))
    assert given_fits(monkeypatch, tuner, {ASSUMED: now, OTHER: other}) is is_adopted
    assert (tuner.replay.slice_ns == OTHER[0]) is is_adopted
    assert tuner.is_settled


@pytest.mark.parametrize(
    ("other", "is_disputed"),
    [
        (Fit(0.19, 0.69, ANCHORS), False),  # not hit often
        (Fit(0.3, 0.9, 10), False),  # by chance
        (Fit(0.3, 0.9, ANCHORS), True),  # scatters too much to be adopted
        (Fit(0.1, 0.49, ANCHORS), False),  # hardly more often
        (Fit(0.3, 0.74, 4), False),  # few anchors
        (Fit(0.1, 0.9, ANCHORS), False),  # adopted
    ],
)
def test_where_another_nature_is_hit_more_often_and_none_adopted_the_present_one_is_disputed(
    monkeypatch: pytest.MonkeyPatch, other: Fit, is_disputed: bool
) -> None:
    tuner = Tuner(Replay(*ASSUMED))
    given_fits(monkeypatch, tuner, {ASSUMED: Fit(0.2, 0.4, ANCHORS), OTHER: other})
    assert tuner.is_disputed is is_disputed


def test_of_those_that_scatter_little_the_one_hit_most_often_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuner = Tuner(Replay(*ASSUMED))
    fits: dict[SliceTiming, Fit | None] = {
        ASSUMED: Fit(0.3, 0.3, ANCHORS),
        OTHER: Fit(0.11, 0.95, ANCHORS),
        (MS, 0): Fit(0.10, 0.8, ANCHORS),  # scatters least
        (10 * MS, 0): Fit(0.2, 1.0, ANCHORS),  # is hit most often: everything fits into one slice
    }
    assert given_fits(monkeypatch, tuner, fits)
    assert (tuner.replay.slice_ns, tuner.replay.switch_ns) == OTHER


@pytest.mark.parametrize("tightest", [(MS // 2, 100_000), (100_000, 0)])
def test_where_one_that_is_seldom_hit_scatters_clearly_less_nothing_is_adopted(
    monkeypatch: pytest.MonkeyPatch, tightest: SliceTiming
) -> None:
    """As on a tape of slices of .5 ms, where calls return too late to be hits: 3 ms fitted its anchors by chance."""
    tuner = Tuner(Replay(*ASSUMED))
    fits: dict[SliceTiming, Fit | None] = {
        ASSUMED: Fit(0.031, 0.53, 19),
        (3 * MS, 350_000): Fit(0.025, 0.84, 19),
        tightest: Fit(0.020, 0.58, 19),
    }
    assert not given_fits(monkeypatch, tuner, fits)
    assert given_fits(monkeypatch, Tuner(Replay(*ASSUMED)), {**fits, tightest: Fit(0.023, 0.58, 19)})


@pytest.mark.parametrize(
    ("certain", "is_adopted"),
    [
        (Fit(0.047, 0.89, 37), True),
        (Fit(0.047, 0.84, 37), False),
        (Fit(0.056, 0.89, 37), False),  # scatters more than the present one
        (Fit(0.047, 0.89, 8), False),  # by chance
    ],
)
def test_one_that_is_hit_nearly_always_needs_not_scatter_least(
    monkeypatch: pytest.MonkeyPatch, certain: Fit, is_adopted: bool
) -> None:
    """As on a tape of slices of 6 ms, where 3 ms scattered by a quarter less."""
    tuner = Tuner(Replay(*ASSUMED))
    now = Fit(0.048, 0.31, certain.anchors)
    fits: dict[SliceTiming, Fit | None] = {ASSUMED: now, OTHER: certain, (3 * MS, 0): Fit(0.034, 0.51, 35)}
    assert given_fits(monkeypatch, tuner, fits) is is_adopted
    assert (tuner.replay.slice_ns == OTHER[0]) is is_adopted


def test_a_fluid_is_never_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Tuner(Replay(*ASSUMED))
    fits: dict[SliceTiming, Fit | None] = {ASSUMED: Fit(0.033, 0.43, 28), (100_000, 0): Fit(0.019, 0.9, 28)}
    assert not given_fits(monkeypatch, tuner, fits)
    assert tuner.is_disputed, "so nobody is held there"


def test_the_record_names_the_few_that_are_hit_most_often(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Tuner(Replay(*ASSUMED))
    hits = dict(zip(natures(), (0.1, 0.5, 0.3, 0.55, 0.4), strict=False))
    given_fits(monkeypatch, tuner, {nature: Fit(1 - hit, hit, ANCHORS) for nature, hit in hits.items()})
    assert tuner.last is not None
    assert [one.hit_ratio for _, one in tuner.last.best] == [0.55, 0.5, 0.4, 0.3]
    assert all(hits[nature] == one.hit_ratio for nature, one in tuner.last.best)
    assert tuner.last.adopted is None
    assert str(tuner.last).startswith("now=2000/100us(hit=0.00 of=500 scatter=5.000) adopted=none best=")


# ---- how it is looked for ----


def fitted(monkeypatch: pytest.MonkeyPatch) -> list[SliceTiming]:
    """The natures tried from now on."""
    tried: list[SliceTiming] = []

    def fit(_tape: Tape, slice_ns: int, switch_ns: int) -> Fit:
        tried.append((slice_ns, switch_ns))
        return Fit(0.1, 0.5, ANCHORS)

    monkeypatch.setattr(tuner_module, "fit", fit)
    return tried


def test_a_step_tries_only_a_few_and_in_the_end_all_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, tuner = fitted(monkeypatch), Tuner(Replay(*ASSUMED))
    tuner.replay.hit_ratio = 0.0
    tuner.step(0)
    fill(tuner.replay)
    for _ in range(len(natures())):
        before = len(tried)
        tuner.step(0)
        assert len(tried) - before <= tuner_module._TRIES_PER_STEP
        if tuner.last is not None:
            break
    assert tried == [ASSUMED, *natures()]


def test_while_it_searches_and_afterwards_nothing_more_is_taped(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(monkeypatch)
    tuner = Tuner(Replay(*ASSUMED))
    tuner.replay.hit_ratio = 0.0
    tuner.step(0)
    assert tuner.replay.tape is not None
    fill(tuner.replay)
    for _ in range(len(natures())):
        tuner.step(0)
        assert tuner.replay.tape is None


def test_the_next_search_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Tuner(Replay(*ASSUMED))
    assert not given_fits(monkeypatch, tuner, {})
    tuner.step(tuner_module._AGAIN_NS - 1)
    assert tuner.replay.tape is None
    tuner.step(tuner_module._AGAIN_NS)
    assert tuner.replay.tape is not None


def test_a_tape_that_is_not_full_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, tuner = fitted(monkeypatch), Tuner(Replay(*ASSUMED))
    tuner.replay.hit_ratio = 0.0
    tuner.step(0)
    fill(tuner.replay, tuner_module._TAPE_CALLS - 1)
    assert not any(tuner.step(t_ns) for t_ns in range(100))
    assert (tried, tuner.last, tuner.is_settled) == ([], None, False)


@pytest.mark.parametrize(("bursts", "is_enough"), [(23, False), (24, True)])
def test_with_too_few_bursts_on_the_tape_nothing_is_decided(bursts: int, is_enough: bool) -> None:
    tuner = Tuner(Replay(*ASSUMED))
    tuner.replay.add("a", (0,))
    tuner.replay.hit_ratio = 0.0
    tuner.step(0)
    tape, now = tuner.replay.tape, 0
    assert isinstance(tape, Tape)
    for _ in range(bursts):
        tuner.replay.open("a", now)
        tape.note("begin", "a")
        now += MS
        tuner.replay.close("a", now)
        tape.note("burst", "a", LAUNCHES, True)
    fill(tuner.replay)
    assert not any(tuner.step(now) for _ in range(len(natures()) + 1))
    assert tuner.last is not None
    assert (tuner.last.present_fit is not None) is tuner.is_settled is is_enough


def fits_of(bursts: Sequence[tuple[str, int, bool]]) -> Fit | None:
    """Of a tape with bursts (key, length in ms, whether no hold touched it), each alone on the GPU."""
    tape, now = Tape([("add", ("a", (0,))), ("add", ("b", (1,)))]), 0
    for key, length_ms, is_whole in bursts:
        tape.note("open", key, now)
        tape.note("begin", key)
        now += length_ms * MS
        tape.note("close", key, now, True)
        tape.note("burst", key, LAUNCHES, is_whole)
    return tuner_module.fit(tape, *ASSUMED)


def test_equal_work_does_not_scatter_and_each_context_has_a_median_of_its_own() -> None:
    equal = fits_of([("a", 3, True), ("b", 9, True)] * 20)
    assert equal is not None
    assert equal.scatter < 0.01, "but for the switch that the first one did not wait for"
    scattered = fits_of([("a", 3, True), ("a", 9, True)] * 20)
    assert scattered is not None
    assert scattered.scatter > 0.5


def test_bursts_that_a_hold_touched_and_contexts_with_few_bursts_say_nothing() -> None:
    equal = [("a", 3, True)] * 30
    assert fits_of([*equal, *[("a", 50, False)] * 30]) == Fit(0.0, 0.0, 0)
    assert fits_of([*equal, *[("b", n, True) for n in (1, 50, 1, 50)]]) == Fit(0.0, 0.0, 0)


# ---- the tape ----

Steps = steps("open", BEFORE, DOUBT, SURE, most=80)


def told(replay: Replay) -> dict[str, tuple[int, bool, int | None]]:
    return {str(key): (*replay.state(key), replay.left_ns(key)) for key in replay.exec_by_key()}


@settings(max_examples=300, deadline=None)
@given(steps=Steps)
def test_a_replay_that_is_told_the_tape_ends_where_the_taped_one_did(
    steps: list[tuple[int, str, str]],
) -> None:
    replay, copy, now = Replay(*ASSUMED), Replay(*ASSUMED), 0
    tape = replay.tape = Tape(replay.as_calls(now))
    for later, what, key in steps:
        now += later
        act(replay, what, key, now)
    play(tape, copy, lambda _name, _arguments: None)
    for one in (replay, copy):
        one.advance(now + 1)
    assert told(copy) == told(replay)
    assert (copy.hits, copy.misses, copy.hit_ratio) == (replay.hits, replay.misses, replay.hit_ratio)
    assert copy.take_drained() == replay.take_drained()


@settings(max_examples=300, deadline=None)
@given(steps=Steps)
def test_a_tape_starts_with_who_is_there_who_works_who_drains_and_who_is_doubted(
    steps: list[tuple[int, str, str]],
) -> None:
    replay, copy, now = Replay(*ASSUMED), Replay(*ASSUMED), 0
    for later, what, key in steps:
        now += later
        act(replay, what, key, now)
    replay.advance(now)
    play(Tape(replay.as_calls(now)), copy, lambda _name, _arguments: None)
    state = {key: (is_runnable, left_ns) for key, (_, is_runnable, left_ns) in told(replay).items()}
    assert {key: (is_runnable, left_ns) for key, (_, is_runnable, left_ns) in told(copy).items()} == state
    assert copy.is_doubted is replay.is_doubted
    circles = [[key for name, (key, *_) in one.as_calls(now) if name == "add"] for one in (replay, copy)]
    assert circles[0] == circles[1] == sorted(state)


def test_bursts_are_heard_where_they_were_noted_and_not_played() -> None:
    tape, heard = Tape([("add", ("a", (0,)))]), []
    copy = Replay(*ASSUMED)
    tape.note("open", "a", 0)
    tape.note("begin", "a")
    tape.note("close", "a", MS, False)
    tape.note("burst", "a", LAUNCHES, True)
    play(tape, copy, lambda name, arguments: heard.append((name, arguments, copy.exec_ns("a"))))
    assert heard == [("begin", ("a",), 0), ("burst", ("a", LAUNCHES, True), MS)]


def test_another_nature_holds_from_now_on_and_is_judged_anew() -> None:
    replay = Replay(*ASSUMED)
    for rank, key in enumerate("ab"):
        replay.add(key, (rank,))
        replay.open(key, 0)
    replay.progress("b", MS, is_anchor=True)
    assert replay.hit_ratio < 1
    replay.advance(2 * MS)
    before = {key: replay.exec_ns(key) for key in "ab"}
    replay.set_nature(6 * MS, 0)
    assert {key: replay.exec_ns(key) for key in "ab"} == before
    assert replay.hit_ratio == 1.0
    replay.advance(7 * MS)  # b since 1 ms
    assert replay.exec_ns("b") == before["b"] + 5 * MS
    replay.advance(8 * MS)
    assert replay.exec_ns("a") == before["a"] + MS
