# SPDX-License-Identifier: Apache-2.0
"""Tricks with many processes: some to be too many to follow, some to take the processors from the daemon."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.trick_company import Company, kill

STORM_S = 1 / 150
STORM_GPU_EVERY = 50
SHORT_S = 0.1
SHORT_LANES = 3
MAX_SPINNERS = 8


def fork_storm(company: Company) -> None:
    """Most come and go without touching the GPU: what is done for each must cost next to nothing."""
    company.start_worker()
    visitors: list[subprocess.Popen[bytes]] = []
    forked: list[int] = []
    for number in company.beats(STORM_S):
        if number % STORM_GPU_EVERY == 0:
            visitors.append(company.spawn("--seconds", "0.02", has_log=False))
        elif (pid := os.fork()) == 0:
            os._exit(0)
        else:
            forked.append(pid)
        visitors = [visitor for visitor in visitors if visitor.poll() is None]
        forked = [pid for pid in forked if os.waitpid(pid, os.WNOHANG) == (0, 0)]


def short_lived(company: Company) -> None:
    """A process is gone before its account has been read twice."""
    lanes: list[subprocess.Popen[bytes]] = []
    company.undo.callback(_kill_all, lanes)
    number = 0
    while True:
        for lane in range(SHORT_LANES):
            if lane == len(lanes) or lanes[lane].poll() is not None:
                if lane < len(lanes) and lanes[lane].returncode:
                    sys.exit(f"tricks: a worker ended with {lanes[lane].returncode}")
                number += 1
                lanes[lane : lane + 1] = [_spawn_short(company, lane, number)]
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)


def _spawn_short(company: Company, lane: int, number: int) -> subprocess.Popen[bytes]:
    return company.spawn("--seconds", str(SHORT_S), "--seed", str(number), has_log=lane == 0)


def _kill_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        kill(process)


def starve_cpu(company: Company) -> None:
    """They have the same priority as everybody; the daemon must not need to be quick to be fair."""
    for _ in range(min(2 * (os.cpu_count() or 1), MAX_SPINNERS)):
        company.start_helper(_spin)
    company.start_worker()
    company.wait()


def _spin() -> None:
    while True:
        pass
