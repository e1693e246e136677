# SPDX-License-Identifier: Apache-2.0
"""Who asks for its work late, when it has long been done, is charged what NVML's samples say its launches take.

Its proofs say when none of it ended. Who asks for the launch before and pauses was charged its pauses, and surely: of
four of weight 9 the neighbour was held for nine of ten seconds and the GPU was a seventh busy; that is also what
training does that reads the loss of the step before. Who keeps a second and a half in flight and asks for what is done
was taken to queue a fifteenth of that, and had .35 of due .11.
"""

from __future__ import annotations

import sys

import pytest

from tests.node.daemon.site import STEADY, Site
from tests.node.hostile.test_bait import watch
from tests.node.hostile.test_phantom import BEGIN
from tests.node.hostile.test_phantom import watch as watch_busy

pytestmark = [pytest.mark.alone, pytest.mark.rest]

BEFORE = f"""
{BEGIN}
import sys
assert cuda.cuModuleGetFunction(byref(function), module, b"work_5us") == 0
events = [c_void_p() for _ in range(2)]
for event in events:
    assert cuda.cuEventCreate(byref(event), 0) == 0
number = 0
while True:
    launch()
    assert cuda.cuEventRecord(events[number % 2], None) == 0
    if number:
        assert cuda.cuEventSynchronize(events[(number - 1) % 2]) == 0
    number += 1
    time.sleep(float(sys.argv[1]))
"""
DEEP = f"""
{BEGIN}
import collections
assert cuda.cuModuleGetFunction(byref(function), module, b"work_500us") == 0
streams = [c_void_p() for _ in range(4)]
for stream in streams:
    assert cuda.cuStreamCreate(byref(stream), 1) == 0
flying = collections.deque()
number = 0
while True:
    while len(flying) < 300:
        event = c_void_p()
        assert cuda.cuEventCreate(byref(event), 0) == 0
        for _ in range(10):
            launch(streams[number % 4])
        assert cuda.cuEventRecord(event, streams[number % 4]) == 0
        flying.append(event)
        number += 1
    time.sleep(0.006)
    while flying and cuda.cuEventQuery(flying[0]) == 0:
        assert cuda.cuEventDestroy_v2(flying.popleft()) == 0
"""
"""3,000 launches in flight."""
SHIELD = f"""
import threading
def shield():
    {BEGIN.replace(chr(10), chr(10) + "    ")}
    assert cuda.cuModuleGetFunction(byref(function), module, b"work_5us") == 0
    while True:
        launch()
        assert cuda.cuCtxSynchronize() == 0
        time.sleep(0.01)
threading.Thread(target=shield, daemon=True).start()
"""
"""In a context of its own, for whose work somebody waits."""
SIDE = f"""
import threading
{BEGIN}
def side():
    assert cuda.cuCtxSetCurrent(context) == 0
    little, stream = c_void_p(), c_void_p()
    assert cuda.cuModuleGetFunction(byref(little), module, b"work_5us") == 0
    assert cuda.cuStreamCreate(byref(stream), 1) == 0
    while True:
        assert cuda.cuLaunchKernel(little, 1, 1, 1, 1, 1, 1, 0, stream, None, None) == 0
        assert cuda.cuStreamSynchronize(stream) == 0
        time.sleep(0.01)
threading.Thread(target=side, daemon=True).start()
{DEEP.replace(BEGIN, "")}
"""
"""In a stream of the same context somebody waits, which proves nothing of the others; it hid what they prove."""
SETTLED_S, WATCHED_S = 15.0, 40.0
MOST_APART = 0.06
"""Of the others, which are alike."""
PLAYS = {"alone": (DEEP, 0.1), "shielded": (SHIELD + DEEP, 0.1), "side": (SIDE, 0.14)}
"""What the others may lack together, of the GPU. Its queue is held for ten seconds: a window as short sees one hold, or
none. The last one was left alone, and had .333; the others, which are alike, were up to .215 apart."""


@pytest.mark.parametrize(
    ("many", "weight", "gap_s", "least"),
    # The last: as many that wait for each launch leave the GPU .64 busy.
    [(1, 1, 0.003, 0.75), (1, 1, 0.02, 0.75), (4, 9, 0.02, 0.75), (4, 9, 0.003, 0.4)],
)
def test_who_asks_for_the_launch_before_is_not_charged_its_pauses(
    site: Site, many: int, weight: int, gap_s: float, least: float
) -> None:
    site.configure({"chat": {"on_misbehaviour": "terminate"}, "hog": {"weight": weight}})
    site.start()
    site.attach()
    site.spawn("chat", STEADY)
    for _ in range(many):
        site.host.popen([sys.executable, "-S", "-c", BEFORE, str(gap_s)], site.cgroup("hog"))
    busy, part = watch_busy(site)
    assert busy > least
    assert part > 0.95


@pytest.mark.parametrize("play", PLAYS)
def test_who_asks_late_on_purpose_is_held_for_what_it_has_in_flight(site: Site, play: str) -> None:
    program, most_wrong = PLAYS[play]
    site.configure({"chat": {"weight": 4}, "other": {"weight": 4}, "hog": {}})
    site.start()
    site.attach()
    for name in ("chat", "other"):
        site.spawn(name, STEADY)
    site.host.popen([sys.executable, "-S", "-c", program], site.cgroup("hog"))
    honest = watch(site, ("chat", "other"), SETTLED_S, WATCHED_S)
    assert 1 - sum(had for had, _ in honest.values()) < 1 / 9 + most_wrong
    assert abs(honest["chat"][0] - honest["other"][0]) < MOST_APART
