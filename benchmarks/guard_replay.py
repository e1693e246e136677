# SPDX-License-Identifier: Apache-2.0
"""How long the guard takes to judge a million samples: ``python -m benchmarks.guard_replay``.

Two shapes, many processes for hours and few for days, with limits of each kind, of which some are exceeded always.
Each is recorded on a tape first; told are the seconds to judge it from memory, and to read and judge the tape.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fairsched.config import from_bytes
from fairsched.guard.judge import Judge
from fairsched.guard.sample import GpuLoad, Process, Round, Sample
from fairsched.guard.tape import Recorder, play_files

LIMITS = b"""
guard:
  zone: Europe/Berlin
  projects: {vision: {tenants: [t1, t2], users: [u3]}}
  limits:
    everybody: {vram: 40GiB, contexts: 20, gpu_seconds_per_day: 20h, hard: end, soft: hold}
    each: {vram: 20GiB, each_gpu: true, gpus: [0, 1]}
    named: {of: [u1], vram: 100GiB}
    tenants: {per: tenant, vram: 60GiB, gpu_seconds_per_day: 200h}
    projects: {per: project, of: [vision], processes: 50, gpu_seconds_per_day: 100h}
    gpus: {per: gpu, vram: 70GiB}
    day: {per: group, of: [students], hours: ["mon-fri 08:00-18:00"]}
"""
SHAPES = ((1000, 1000, 100, 8), (20, 50_000, 5, 2))
"""Processes, rounds, users, GPUs."""
_BEGIN_S = 1_764_000_000.0
_EVERY_S = 10.0


def rounds(processes: int, count: int, users: int, gpus: int) -> Iterator[Round]:
    """Everybody is on one GPU, works half of the time, and holds 1 to 3 GiB."""
    uuids = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(gpus)]
    load = {uuid: GpuLoad(0.5, 1, 2, number) for number, uuid in enumerate(uuids)}
    made = [
        Process(
            pid=1000 + number,
            start_ticks=number,
            boot_id="boot",
            uid=1000 + number % users,
            user=f"u{number % users}",
            groups=("students",) if number % 5 == 0 else ("staff",),
            tenant=f"t{number % users % 10}",
            started_s=_BEGIN_S - 60,
        )
        for number in range(processes)
    ]
    for turn in range(1, count + 1):
        samples = tuple(
            Sample(
                one,
                uuids[number % gpus],
                (1 + number % 3) << 30,
                1,
                turn * _EVERY_S / 2,
                turn,
                None,
                False,
                (),
            )
            for number, one in enumerate(made)
        )
        tenants = {f"t{number}": {uuids[0]: turn * 1.0} for number in range(10)}
        yield Round(_BEGIN_S + turn * _EVERY_S, samples, load, tenants)


def judged(moments: Iterator[Round]) -> tuple[float, int]:
    """Seconds in the judge, and breaches."""
    judge, spent_s, found = Judge(from_bytes(LIMITS, "limits").guard.rules()), 0.0, 0
    for moment in moments:
        begun_s = time.perf_counter()
        found += len(judge.feed(moment))
        spent_s += time.perf_counter() - begun_s
    return spent_s, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for shape in SHAPES:
            path = Path(directory, "a.tape")
            with open(path, "w", encoding="utf-8") as file:
                recorder = Recorder(file)
                for moment in rounds(*shape):
                    recorder.write(moment)
            spent_s, found = judged(rounds(*shape))
            begun_s = time.perf_counter()
            judged(play_files([path]))
            whole_s = time.perf_counter() - begun_s
            print(
                f"{shape[0]} processes x {shape[1]} rounds: judged in {spent_s:.1f} s, read and judged in "
                f"{whole_s:.1f} s; {found} breaches, {path.stat().st_size >> 20} MiB of tape"
            )


if __name__ == "__main__":
    main()
