# SPDX-License-Identifier: Apache-2.0
"""A tape gives back what was written, and names the line that it cannot read."""

from __future__ import annotations

import io

import pytest

from fairsched.guard.sample import GpuLoad, Process, Round, Sample
from fairsched.guard.tape import Recorder, TapeError, play

A = Process(7, 100, uid=1000, user="alice", groups=("ml", "gpu"), command='train "\n\u202e', started_s=5.0)
B = Process(7, 200, tenant="chat")
ROUNDS = [
    Round(1.0, (Sample(A, "GPU-0", 5, 1, 0.5, 3, None, True, (443, 3333)),), {"GPU-0": GpuLoad(0.5, 1, 2)}),
    Round(2.0, (Sample(A, "GPU-0"), Sample(A, "GPU-1", 9), Sample(B, "GPU-1", gpu_time_s=2.5))),
    Round(3.0, ()),
    Round(4.0, (Sample(A, "GPU-0", is_orphan=False),)),
    Round(5.0, (), {"GPU-0": GpuLoad(index=3)}, {"lab/x": {"GPU-0": 1.25, "GPU-1": 0.0}}),
]


def recorded() -> str:
    file = io.StringIO()
    recorder = Recorder(file)
    for one in ROUNDS:
        recorder.write(one)
    return file.getvalue()


def test_rounds_come_back_as_they_were() -> None:
    assert list(play(io.StringIO(recorded()))) == ROUNDS


def test_a_process_whose_facts_become_known_is_written_anew() -> None:
    file = io.StringIO()
    recorder = Recorder(file)
    known = Process(7, 200, tenant="chat", program_digest="sha256:00")
    rounds = [Round(1.0, (Sample(B, "g"),)), Round(2.0, (Sample(known, "g"),))]
    for one in rounds:
        recorder.write(one)
    assert list(play(io.StringIO(file.getvalue()))) == rounds


def test_a_tape_of_before_indexes_and_tenants_is_read() -> None:
    (found,) = play(['{"t": 1, "gpus": {"g": [0.5, 1, 2]}, "samples": []}\n'])
    assert (found.gpus, found.tenants) == ({"g": GpuLoad(0.5, 1, 2)}, {})


def test_half_a_last_line_is_left_out() -> None:
    text = recorded()
    for cut in range(2, 40):
        assert list(play(io.StringIO(text[:-cut]))) == ROUNDS[:-1]


@pytest.mark.parametrize(
    "line", ["{}", "[]", "7", '{"t": 1, "samples": [[99, "g"]]}', '{"process": 1}', "\x00"]
)
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(TapeError, match=r"^x\.tape:2: not a line"):
        list(play(io.StringIO('{"t": 1, "samples": []}\n' + line + "\n"), "x.tape"))
