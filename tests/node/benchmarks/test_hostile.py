# SPDX-License-Identifier: Apache-2.0
"""No trick that can be seen or held pays, and those that cannot are found, named and acted on.

Each shipped hostile scenario is played with our daemon, for some seconds only: what is asked here is that the trick
does not pay, the bar of 2 points is for the benchmark and its longer runs. That it is a trick at all is seen in the
engine's truth and in /proc while it is played.
"""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.fair import controllers
from benchmarks.fair.measures import measure
from benchmarks.fair.recording import Recording
from benchmarks.fair.scenario import Play, load, shipped
from benchmarks.rig import Rig
from tests.node.benchmarks.plays import SeenRig, Theatre, cgroup_of, pids_of

GAIN_POINTS = 6.0
SECONDS = 5.0
FOUND_S = 5.0
HONEST = ("honest1", "honest2")
HOSTILE = "hostile"
OWNER = 3
S = 1_000_000_000
NAMES = [path.stem for path in shipped() if path.stem.startswith("hostile-")]


@dataclass
class Sighting:
    """What could be seen of the hostile tenant, at any time."""

    contexts: set[tuple[int, int]] = field(default_factory=set)
    """(pid, number), of contexts that lived."""
    together: int = 0
    """Most of them at once."""
    pids: set[int] = field(default_factory=set)
    """In its cgroup."""
    pids_together: int = 0
    cgroups: set[str] = field(default_factory=set)
    """Of its GPU processes, below its own."""
    libraries: set[str] = field(default_factory=set)
    """Files named libcuda that its GPU processes have mapped."""
    arguments: set[str] = field(default_factory=set)
    """Of its GPU processes, joined by blanks."""
    naps: int = 0
    """Most often that one of them has given the processor up."""
    traced: set[int] = field(default_factory=set)
    strays: set[int] = field(default_factory=set)
    """Processes of it outside of its cgroup."""
    kernels: int = 0
    exec_ns: int = 0
    libcuda: str = ""
    """The file that everybody else has."""

    def was_told(self, words: str) -> bool:
        return any(words in arguments for arguments in self.arguments)

    def look(self, rig: SeenRig, _done: float) -> None:
        self.libcuda = os.path.realpath(rig.libcuda)
        home = rig.cgroup_path(HOSTILE)
        mine = [truth for truth in rig.host.truth(sync=False) if truth.owner == OWNER]
        alive = [truth for truth in mine if truth.is_alive]
        self.kernels, self.exec_ns = sum(t.kernels for t in mine), sum(t.exec_ns for t in mine)
        self.contexts |= {(truth.pid, truth.id) for truth in mine}
        self.together = max(self.together, len(alive))
        pids = set(pids_of(rig.mount.absolute(home)))
        self.pids |= pids
        self.pids_together = max(self.pids_together, len(pids))
        for pid in {truth.pid for truth in alive}:
            path = cgroup_of(pid)
            if path is not None and path.startswith(home):
                self.cgroups.add(path.removeprefix(home))
            self.libraries |= set(_mapped(pid))
            self.arguments.add(" ".join(_read(pid, "cmdline").split("\0")))
            self.naps = max(self.naps, sum(_status(pid, "voluntary_ctxt_switches")))
            if any(_status(pid, "TracerPid")):
                self.traced.add(pid)
        self.strays |= {pid for pid in _owned() if pid not in pids and not _is_below(pid, home)}


def _read(pid: int, file: str) -> str:
    """Nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return ""


def _mapped(pid: int) -> Iterator[str]:
    yield from (line.split()[-1] for line in _read(pid, "maps").splitlines() if "libcuda" in line)


def _status(pid: int, key: str) -> Iterator[int]:
    """Of each thread."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for line in _read(pid, f"task/{task.name}/status").splitlines():
            if line.startswith(f"{key}:"):
                yield int(line.split()[1])


def _owned() -> Iterator[int]:
    """Processes that have inherited its tag."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"FAIRSCHED_SIM_OWNER={OWNER}".encode() in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)
        except OSError:
            continue


def _is_below(pid: int, home: str) -> bool:
    path = cgroup_of(pid)
    return path is None or path.startswith(home)


def _wants_always(recording: Recording) -> float:
    """Part of the measured time in which one of its contexts ran or could have run."""
    inside = [s for s in recording.samples if recording.start_ns <= s.at_ns <= recording.end_ns]
    first, last = inside[0], inside[-1]
    key = (HOSTILE, 0)
    grown_ns = last.exec_ns[key] + last.wait_ns[key] - first.exec_ns[key] - first.wait_ns[key]
    return grown_ns / (last.at_ns - first.at_ns)


def _overran(recording: Recording) -> bool:
    """After a hold began it ran for longer than what a decoder has queued."""
    drain_ms = measure(recording).leaves[HOSTILE].drain_overshoot_p95_ms
    return drain_ms is not None and drain_ms > 50


def _steps(recording: Recording) -> int:
    return sum(map(len, recording.steps[HOSTILE]))


Evidence = Callable[[Sighting, Recording], bool]
EVIDENCE: dict[str, Evidence] = {
    "hostile-child-cgroups": lambda seen, _: len(seen.cgroups - {""}) >= 3,
    "hostile-contexts": lambda seen, _: seen.together == 8 and len({pid for pid, _ in seen.contexts}) == 1,
    "hostile-dlopen": lambda seen, _: bool(seen.libraries) and seen.libcuda not in seen.libraries,
    "hostile-fork-storm": lambda seen, _: len(seen.contexts) > 5 and len(seen.pids) > 5,
    "hostile-graph": lambda seen, recording: seen.kernels > 5000 * _steps(recording) > 0,
    "hostile-move": lambda seen, _: len(seen.cgroups) >= 2,
    "hostile-nosync": lambda seen, recording: seen.was_told("--wait none") and _wants_always(recording) > 0.8,
    "hostile-pinned": lambda seen, _: seen.naps > 5000,
    "hostile-processes": lambda seen, _: len({pid for pid, _ in seen.contexts}) == 8 == seen.together,
    "hostile-ptrace": lambda seen, _: bool(seen.traced),
    "hostile-query": lambda seen, _: seen.naps > 5000,
    "hostile-queue": lambda _, recording: _overran(recording),
    "hostile-short-lived": lambda seen, _: len({pid for pid, _ in seen.contexts}) > 20,
    "hostile-sigcont": lambda seen, _: bool(seen.strays),
    "hostile-starve-cpu": lambda seen, _: seen.pids_together > 2 * (os.cpu_count() or 1),
    "hostile-streams": lambda seen, _: seen.was_told("--streams 16"),
}
"""That the trick was played. Who waits in a call naps once per step, some hundred times; who polls, thousands."""


@pytest.fixture
def theatre(monkeypatch: pytest.MonkeyPatch, build_dir: Path) -> Theatre:
    return Theatre(monkeypatch, build_dir)


def test_every_hostile_scenario_is_played_here() -> None:
    assert set(EVIDENCE) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_trick_does_not_pay(theatre: Theatre, name: str) -> None:
    seen = Sighting()
    recording = theatre.play(load(Path(name)), "fairsched", SECONDS, seen.look)
    measures = measure(recording)
    hostile = measures.leaves[HOSTILE]
    story = {
        leaf: (one.share_ratio, one.entitlement_ratio, one.held_ms_per_s)
        for leaf, one in measures.leaves.items()
    }
    assert seen.contexts and seen.exec_ns > 0, "it used the GPU"
    assert EVIDENCE[name](seen, recording), seen
    assert hostile.gain_points is not None
    assert hostile.gain_points <= GAIN_POINTS, story
    for leaf in HONEST:
        one = measures.leaves[leaf]
        assert one.tokens_per_s, story
        assert one.share_ratio is not None and one.entitlement_ratio is not None
        assert one.share_ratio > one.entitlement_ratio / 2, story
        late_ns = recording.end_ns - S
        assert any(step.end_ns > late_ns for log in recording.steps[leaf] for step in log), (
            "it went on to the end"
        )
    assert not measures.misbehaviour, "all of it can be seen and held"
    theatre.rig.assert_nothing_left()


# ---- beyond a freezer's reach, or the account's sight ----


@dataclass
class Told:
    """What the metrics said while a scenario was played, and what became of the hostile contexts."""

    port: int
    named: set[tuple[str, str]] = field(default_factory=set)
    """(tenant, kind)."""
    terminations: dict[tuple[str, str], float] = field(default_factory=dict)
    alive: int = 0
    """Hostile contexts at the last look."""
    most_alive: int = 0

    def look(self, rig: SeenRig, _done: float) -> None:
        self.alive = sum(truth.owner == OWNER and truth.is_alive for truth in rig.host.truth(sync=False))
        self.most_alive = max(self.most_alive, self.alive)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except urllib.error.URLError:
            return
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                key = (one.labels.get("tenant", ""), one.labels.get("kind", ""))
                if one.name == "fairsched_misbehaving" and one.value:
                    self.named.add(key)
                if one.name == "fairsched_terminations_total" and one.value:
                    self.terminations[key] = one.value


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        told = Told(int(probe.getsockname()[1]))
    plain = controllers.daemon_config

    def with_metrics(rig: Rig, play: Play) -> dict[str, Any]:
        return {**plain(rig, play), "metrics": {"listen": f"127.0.0.1:{told.port}"}}

    monkeypatch.setattr(controllers, "daemon_config", with_metrics)
    return told


def found_after_s(recording: Recording) -> float:
    (after_s,) = [
        one.misbehaviour_after_s
        for leaf, one in measure(recording).leaves.items()
        if one.misbehaviour_after_s is not None
    ]
    return after_s


def goes_on(recording: Recording, leaf: str) -> bool:
    late_ns = recording.end_ns - S
    return any(step.end_ns > late_ns for log in recording.steps[leaf] for step in log)


def test_endless_kernels_are_found_named_and_ended(theatre: Theatre, told: Told) -> None:
    recording = theatre.play(load(Path("beyond-endless")), "fairsched", 15.0, told.look)
    assert measure(recording).misbehaviour == {HOSTILE: "endless"}
    assert found_after_s(recording) <= FOUND_S
    assert told.named == {(HOSTILE, "endless")}
    assert told.terminations == {(HOSTILE, "endless"): 1}
    assert told.most_alive == 4
    assert told.alive == 0, "its contexts are gone"
    assert any(note.startswith(f"{HOSTILE}: its trick ended") for note in recording.notes)
    assert all(goes_on(recording, leaf) for leaf in HONEST)
    theatre.rig.assert_nothing_left()


def test_work_past_the_exports_is_found_and_named_and_nobody_else_pays_for_it(
    theatre: Theatre, told: Told
) -> None:
    recording = theatre.play(load(Path("beyond-static")), "fairsched", 12.0, told.look)
    measures = measure(recording)
    assert measures.misbehaviour == {HOSTILE: "unseen"}
    assert found_after_s(recording) <= FOUND_S
    assert told.named == {(HOSTILE, "unseen")}
    assert told.terminations == {}
    assert told.alive == 1, "the policy says warn"
    for leaf in HONEST:
        assert goes_on(recording, leaf)
        assert measures.leaves[leaf].held_ms_per_s < 50
    assert recording.accounts[-1].confidence[HOSTILE] == "low"
    theatre.rig.assert_nothing_left()
