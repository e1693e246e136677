# SPDX-License-Identifier: Apache-2.0
"""The account on what a real GPU did (H200, driver 580.159.04, slices of 2.097 ms): recorded, with the truth.

The tape is of an enforcing daemon (benchmarks/record.py); what was true is what the kernels noted themselves
(benchmarks/gpu/timed.py). Each program begins with 32 kernels of no length, as programs begin with other work than
they go on with.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay import Playback, charged_ns, totals

LIGHT = Path(__file__).with_name("h200_light.tape")
"""5 s: a service of 40 requests a second, a decoder and a trainer, weights 1:2:1."""
RAN_MS = {"light": 176.0, "chat": 1830.3, "train": 1934.7}


@pytest.fixture(scope="module")
def charged_ms() -> dict[str | None, float]:
    tenants = {tgid: total.tenant for tgid, total in totals(Playback(LIGHT))[0].items()}
    return {tenants[tgid]: series[-1][1] / 1e6 for tgid, series in charged_ns(LIGHT).items()}


@pytest.mark.parametrize("tenant", ["chat", "train"])
def test_who_works_all_the_time_is_charged_what_it_ran(
    charged_ms: dict[str | None, float], tenant: str
) -> None:
    """Before, the decoder was charged twice as much: its cost was measured beside a trainer that was taken to have
    drained, because its first kernels had no length."""
    assert charged_ms[tenant] == pytest.approx(RAN_MS[tenant], rel=0.08)


def test_a_light_one_is_charged_no_more_than_the_wait_for_its_turns(
    charged_ms: dict[str | None, float],
) -> None:
    assert RAN_MS["light"] < charged_ms["light"] < 1.3 * RAN_MS["light"]
