# SPDX-License-Identifier: Apache-2.0
"""The account is right on GPUs of another nature than the one it assumes, or says that it is not sure and lets go.

Every nature is played as `make bench` plays it, two at once, but shorter. What such a play does not decide, a longer
one does: an error of three seconds is some points off by chance.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from benchmarks.fair import bars, results
from benchmarks.fair.scenario import shipped
from tests.node.benchmarks.plays import cgroups

ROOT = Path(__file__).resolve().parents[3]
NAMES = tuple(path.stem for path in shipped() if path.stem.startswith("nature-"))
SECONDS = 3.0
LONGER_S = 15.0
TOO_LONG_S = 120.0
AT_ONCE = 2
KNOWN = {f"nature-{name}" for name in ("foreign", "slice-1", "slice-2", "slice-6", "switch-0", "switch-0.5")}
"""Natures that the account can follow: here it may not get away with never being sure."""
(BAR,) = (bar for bar in bars.BARS if bar.scenarios == "nature-*")


@dataclass(frozen=True)
class Played:
    """What came of one, and what was left of it."""

    document: Mapping[str, Any]
    cgroups: list[Path]


def play(name: str, slots: Queue[Path]) -> Played:
    """In a process of its own with libraries of its own: probes belong to an inode."""
    slot = slots.get()
    try:
        played = _play(name, SECONDS, slot)
        return played if is_decided(played.document) else _play(name, LONGER_S, slot)
    finally:
        slots.put(slot)


def _play(name: str, seconds: float, slot: Path) -> Played:
    output = slot / f"{name}-{seconds:g}.json"
    command = [sys.executable, "benchmarks/fairness.py", "--scenario", name, "--policy", "fairsched"]
    command += ["--seconds", str(seconds), "--json", str(output), "--build", str(slot / "simgpu")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            _, errors = child.communicate(timeout=TOO_LONG_S)
        except BaseException:
            child.terminate()  # it cleans up after itself
            raise
        assert child.returncode == 0, errors
        return Played(json.loads(output.read_text()), cgroups(f"bench-{child.pid}-"))


def verdict(document: Mapping[str, Any]) -> bars.Verdict:
    (found,) = bars.judge([document], bars=[BAR])
    return found


def is_decided(document: Mapping[str, Any]) -> bool:
    found = verdict(document)
    return found.is_met is True and (found.value is not None or document["scenario"] not in KNOWN)


@pytest.fixture(scope="module")
def performances(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Played]]]:
    """By name, of the natures that are asked for; begun in the order of the tests, which wait for theirs."""
    asked = [item for item in request.session.items if item.fspath == request.node.fspath]
    names = [item.callspec.params["name"] for item in asked if hasattr(item, "callspec")]
    slots: Queue[Path] = Queue()
    for number in range(AT_ONCE):
        slots.put(tmp_path_factory.mktemp(f"slot{number}"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(play, name, slots) for name in names}
        pool.shutdown(cancel_futures=True)


def test_there_are_all_natures_that_were_promised() -> None:
    """Slices of four lengths, unequal and uneven; two switch costs; no preemption; overlap; copies; a stranger."""
    assert len(NAMES) == 12


@pytest.mark.parametrize("name", NAMES)
def test_the_account_is_right_or_says_so_and_does_not_enforce(
    performances: Mapping[str, Future[Played]], name: str
) -> None:
    played = performances[name].result()
    document = played.document
    shares = results.leaf_values(document, "share_ratio")
    assert sum((share or 0.0) >= 0.1 for share in shares.values()) >= 2, "there is somebody to judge"
    assert not document["misbehaviour"], "however wrong the account is, it accuses nobody"
    judged = verdict(document)
    assert judged.is_met, (judged.value, judged.note, document["seconds"], document["measures"])
    assert name not in KNOWN or judged.value is not None, "it was sure of somebody"
    assert played.cgroups == []
