# SPDX-License-Identifier: Apache-2.0
"""Has one pid given to two processes in turn, and reclaims the first: at four moments between list and signal.

Runs as the first process of a pid namespace. Prints how often the pid was reused, and how often the second was hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from fairsched.protocol.process import ProcessStatus
from fairsched.reclaim.end import Ending
from fairsched.reclaim.facts import read_facts, read_table
from fairsched.reclaim.holder import Holder, Listing
from fairsched.reclaim.pin import Pin
from fairsched.reclaim.plan import Target
from fairsched.reclaim.session import Own, Session, Wish

LAST_PID = "/proc/sys/kernel/ns_last_pid"
PID = 4000


def child() -> int:
    """A process with the pid, which ends on any signal that ends. In the pipe's place: SIGTERM kills it."""
    with open(LAST_PID, "w") as file:
        file.write(str(PID - 1))
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()
    assert pid == PID, pid
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def attempt(number: int) -> bool:
    """Whether the second process was hit."""
    end_first = child()
    facts = read_facts(end_first)
    assert facts is not None
    pins: dict[int, Pin] = {}

    def swap() -> None:
        end(PID)
        child()

    moment = number % 4
    if moment == 3:  # between the list and the pin, in the same tick: only the second look can tell
        return attempt_in_the_same_tick()
    if moment == 0:  # between the list and the pin, in another tick: the start time tells
        end(PID)
        last = facts.start_ticks
        while True:
            child()
            now = read_facts(PID)
            assert now is not None
            if now.start_ticks != last:
                break
            end(PID)
    pin = Pin.open(facts.pid, facts.start_ticks)
    if pin is not None:
        pins[PID] = pin
    if moment == 1:  # between the pin and the signal
        swap()
    ending = Ending(
        [Target(facts, "test")] if pin is not None else [],
        pins,
        is_forced=True,
        mount=None,
        pauses=lambda _: {},
        protected={},
        tell=lambda _: None,
    )
    if moment == 2:  # after the targets were taken over
        swap()
    with contextlib.closing(ending):
        ending.run(0.0, 0.0)
    is_hit = os.waitpid(PID, os.WNOHANG)[0] != 0
    if not is_hit:
        end(PID)
    return is_hit


class Truth:
    """A lister that says the truth: the first process holds a GPU while it lives, the second holds none."""

    mount = None

    def __init__(self) -> None:
        self.holds = True

    def look(self) -> Listing:
        table = read_table()
        holders = (Holder(ProcessStatus(PID, "GPU-a"), table[PID], is_listed=True),) if self.holds else ()
        return Listing(holders, (), table)


def attempt_in_the_same_tick() -> bool:
    lister, open_pin = Truth(), Pin.open

    def open_too_late(pid: int, start_ticks: int) -> Pin | None:
        if lister.holds:
            lister.holds = False
            end(PID)
            child()
        # As where both have started within one tick.
        now = read_facts(pid)
        return open_pin(pid, start_ticks if now is None else now.start_ticks) and Pin(
            os.pidfd_open(pid), pid, start_ticks
        )

    session = Session(cast(Any, lister), Own(has_answer=True))
    with mock.patch("fairsched.reclaim.session.Pin.open", open_too_late):
        prepared = session.prepare(Wish(lambda listing: list(listing.holders), ""))
    ending = Ending(
        prepared.plan.targets, prepared.pins, is_forced=True, mount=None, pauses=lambda _: {}, protected={}
    )
    with contextlib.closing(ending):
        ending.run(0.0, 0.0)
    is_hit = os.waitpid(PID, os.WNOHANG)[0] != 0
    if not is_hit:
        end(PID)
    return is_hit


def main() -> None:
    attempts = int(sys.argv[1])
    hit = sum(attempt(number) for number in range(attempts))
    print(f"{attempts} attempts, {attempts} reused, {hit} hit")


if __name__ == "__main__":
    main()
