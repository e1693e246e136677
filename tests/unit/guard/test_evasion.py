# SPDX-License-Identifier: Apache-2.0
"""One work under several names is told from several people with one tool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairsched.guard.thresholds import Evasion
from tests.unit.guard.test_rogue import PROCESS, At, at, every, feed, look, score


def copies(count: int, share: float = 0.8, **about: Any) -> list[At]:
    return [
        at(
            share,
            100,
            gpu=f"GPU-{n}",
            remote_ports=about.get("ports", (5123,)),
            process=replace(PROCESS, pid=10 + n, tenant=f"t{n}", image_digest=about.get("image")),
        )
        for n in range(count)
    ]


def test_one_program_at_one_port_over_three_tenants() -> None:
    found = feed(Evasion(), look(every(10, 310), *copies(3)))
    assert {one.process.pid for one in found} == {10, 11, 12}
    assert found[0].score == 0.7
    assert "together 2.4 GPUs for 5.2 min, and one may have 1" in found[0].evidence[1]
    assert feed(Evasion(), look(every(10, 200), *copies(3))) == []


@pytest.mark.parametrize(
    "of",
    [
        copies(2),
        copies(3, share=0.3),
        copies(3, ports=(443, 6379)),
        copies(3, ports=None),
        [*copies(3), at(0.1, 1, process=replace(PROCESS, pid=99), remote_ports=())],
    ],
    ids=["two", "below", "common ports", "not known", "also without"],
)
def test_what_is_no_evasion(of: list[At]) -> None:
    assert score(Evasion(), look(every(10, 600), *of)) == 0


@pytest.mark.parametrize(
    ("about", "worth"),
    [
        ({}, 0.7),
        ({"command": "/x/run --rank {n}"}, 0.7),
        ({"command": "solver -j {letter}"}, 0.4),
        ({"uid": 1203}, 0.0),
        ({"uid": 0}, 0.7),
    ],
)
def test_one_work_has_one_command_and_several_users(about: dict[str, Any], worth: float) -> None:
    of = [
        at(
            0.8,
            100,
            gpu=f"GPU-{n}",
            remote_ports=(5123,),
            process=replace(
                PROCESS,
                pid=10 + n,
                tenant=f"t{n}",
                uid=about.get("uid"),
                command=about.get("command", "run").format(n=n, letter="abc"[n]),
            ),
        )
        for n in range(3)
    ]
    assert score(Evasion(), look(every(10, 600), *of)) == worth


def test_an_image_alone_is_worth_little() -> None:
    assert score(Evasion(), look(every(10, 600), *copies(3, ports=(443,), image="sha256:5"))) == 0.2


# together
