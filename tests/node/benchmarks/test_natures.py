# SPDX-License-Identifier: Apache-2.0
"""Shares hold on GPUs of another nature than the one that the account assumes.

Every nature is played as `make bench` plays it, two at once, but shorter. What such a play does not decide, longer
ones do that have the machine to themselves: an error of three seconds is some points off by chance.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from benchmarks.fair import bars, results, summary
from benchmarks.fair.scenario import DIRECTORY, shipped
from tests.node.benchmarks.plays import cgroups
from tests.node.promptness import Stopwatch, Took

pytestmark = [pytest.mark.alone, pytest.mark.rest]

ROOT = Path(__file__).resolve().parents[3]
NAMES = tuple(path.stem for path in shipped() if path.stem.startswith("nature-"))
SECONDS = 3.0
LONGER_S = 15.0
TOO_LONG_S = 120.0
AT_ONCE = 2
TOLD = "nature-slice-6-told"
KNOWN = {"nature-foreign", "nature-slice-2", TOLD}
"""Natures like the assumed one: here the account must be right, too. Not where switching takes another part of the time
than is assumed, because slices or switches are longer or shorter: who is never alone, or has several processes, is
charged that, until somebody tells the daemon of the slices (docs/accounting.md). On the others it is the share that
counts: it may err by as much as half of what it errs by where nobody is held."""
HELD_RATIO = 0.5
(BAR,) = (bar for bar in bars.BARS if (bar.scenarios, bar.figure) == ("nature-*", "account_error_ratio"))
BUSY_RATIO = 0.15
"""Of the time of a play. Alone on a quiet machine .03 to .09 was measured, beside compilers .2: 10 % off were seen."""
MAJORITY = 2
"""Of three."""


@dataclass(frozen=True)
class Played:
    """What came of one, and what was left of it."""

    document: Mapping[str, Any]
    cgroups: list[Path]
    took: Took


class Ensemble:
    """Gives the plays. Everyone has a slot, a directory with libraries of its own, for probes belong to an inode; who
    wants the machine to itself takes all of them, and whoever comes after waits behind."""

    def __init__(self, slots: Sequence[Path]) -> None:
        self._count = len(slots)
        self._free: Queue[Path] = Queue()
        for slot in slots:
            self._free.put(slot)
        self._turnstile = threading.Lock()

    def perform(self, name: str) -> Played:
        with self._slots(1) as slot:
            played = _play(name, SECONDS, slot)
        return played if is_decided(played) else self.perform_alone(name)

    def perform_alone(self, name: str) -> Played:
        """What most of three plays say."""
        count = {True: 0, False: 0}
        with self._slots(self._count) as slot:
            while True:
                played = _play(name, LONGER_S, slot)
                count[is_decided(played)] += 1
                if MAJORITY in count.values():
                    return played

    @contextlib.contextmanager
    def _slots(self, count: int) -> Iterator[Path]:
        taken: list[Path] = []
        try:
            with self._turnstile:
                while len(taken) < count:
                    taken.append(self._free.get())
            yield taken[0]
        finally:
            for slot in taken:
                self._free.put(slot)


def _play(name: str, seconds: float, slot: Path) -> Played:
    output = slot / f"{Path(name).stem}-{seconds:g}.json"
    command = [sys.executable, "benchmarks/fairness.py", "--scenario", name, "--policy", "fairsched"]
    command += ["--seconds", str(seconds), "--json", str(output), "--build", str(slot / "simgpu")]
    watch = Stopwatch()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            _, errors = child.communicate(timeout=TOO_LONG_S)
        except BaseException:
            child.terminate()  # it cleans up after itself
            raise
        assert child.returncode == 0, errors
        return Played(json.loads(output.read_text()), cgroups(f"bench-{child.pid}-"), watch.read())


def verdict(played: Played) -> bars.Verdict:
    """By twice the bar where the machine has its part in the error: who waits for a processor sees the end of its work
    late."""
    is_busy = played.took.waited_s > BUSY_RATIO * played.took.wall_s
    (found,) = bars.judge([played.document], bars=[replace(BAR, limit=BAR.limit * (2 if is_busy else 1))])
    return found


def share_error(document: Mapping[str, Any]) -> float:
    return float(document["measures"]["whole"]["share_error_max_points"])


def nobody_held(name: str) -> float:
    """The share error without a daemon, as it was measured (mean of the committed seeds)."""
    found = [share_error(one) for one in summary.read() if (one["scenario"], one["policy"]) == (name, "none")]
    return statistics.fmean(found)


def is_decided(played: Played) -> bool:
    document = played.document
    if document["scenario"] in KNOWN:
        found = verdict(played)
        return found.is_met is True and found.value is not None
    return share_error(document) <= HELD_RATIO * nobody_held(document["scenario"])


class Performances:
    """Those of the natures that are asked for, begun at once. Each is handed out once: a second chance gets a play of
    its own, not the same one again."""

    def __init__(self, ensemble: Ensemble, pool: ThreadPoolExecutor, names: Sequence[str]) -> None:
        self._ensemble = ensemble
        self._begun = {name: pool.submit(ensemble.perform, name) for name in names}

    def take(self, name: str) -> Played:
        begun = self._begun.pop(name, None)
        return self._ensemble.perform_alone(name) if begun is None else begun.result()


@pytest.fixture(scope="module")
def performances(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Performances]:
    asked = [item for item in request.session.items if item.fspath == request.node.fspath]
    names = [item.callspec.params["name"] for item in asked if hasattr(item, "callspec")]
    slots = [tmp_path_factory.mktemp(f"slot{number}") for number in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield Performances(Ensemble(slots), pool, names)
        pool.shutdown(cancel_futures=True)


def test_there_are_all_natures_that_were_promised() -> None:
    """Slices of four lengths, unequal and uneven; two switch costs; no preemption; overlap; copies; a stranger."""
    assert len(NAMES) == 12


@pytest.mark.timeout(900)
def test_the_account_is_right_where_the_daemon_is_told_of_the_slices(
    performances: Performances, tmp_path: Path
) -> None:
    """Of 6 ms; without that it is 6 to 10 % off."""
    untold, told = "{slice_us: 6000}", "{slice_us: 6000, told_slice_us: 6000}"
    source = (DIRECTORY / "nature-slice-6.yaml").read_text()
    assert untold in source
    (tmp_path / f"{TOLD}.yaml").write_text(source.replace(untold, told))
    played = performances.take(str(tmp_path / f"{TOLD}.yaml"))
    assert is_decided(played), (verdict(played), played.took)


@pytest.mark.timeout(900)  # some of them may want three plays of 40 s, one after the other
@pytest.mark.parametrize("name", NAMES)
def test_shares_hold_whatever_turns_the_gpu_takes(performances: Performances, name: str) -> None:
    played = performances.take(name)
    document = played.document
    shares = results.leaf_values(document, "share_ratio")
    assert sum((share or 0.0) >= 0.1 for share in shares.values()) >= 2, "there is somebody to judge"
    assert not document["misbehaviour"], "however wrong the account is, it accuses nobody"
    judged, told = verdict(played), (played.took, document["seconds"], document["measures"])
    assert is_decided(played), (judged.value, judged.note, share_error(document), nobody_held(name), told)
    assert played.cgroups == []
