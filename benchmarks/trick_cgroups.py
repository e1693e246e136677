# SPDX-License-Identifier: Apache-2.0
"""Tricks with cgroups: where a process is, is not where it was a moment ago, and not where its threads are.

Without controllers, as in the tenants' part of the tree, a cgroup may have processes and children at once.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from benchmarks.trick_company import Company, move_to

MOVE_S = 0.05


def move(company: Company) -> None:
    """Between two cgroups of its own and, where it may, the tenant's parent: held meanwhile, it is not there."""
    _move_between(company, [company.home.parent])


def move_within(company: Company) -> None:
    """What a tenant may that has been given its own cgroup and nothing above it."""
    _move_between(company, [])


def _move_between(company: Company, others: list[Path]) -> None:
    own = [company.make_cgroup("a"), company.make_cgroup("b")]
    worker = company.start_worker(cgroup=own[0])
    for _, place in zip(company.beats(MOVE_S), itertools.cycle([*own, *others]), strict=False):
        move_to(place, worker.pid)


def child_cgroups(company: Company) -> None:
    """A worker in a child, one in a child of that, and one whose submitting thread is in a threaded cgroup."""
    child = company.make_cgroup("child")
    deeper = company.make_cgroup("deeper", child)
    domain = company.make_cgroup("domain")
    threaded = company.make_cgroup("threaded", domain)
    (threaded / "cgroup.type").write_text("threaded")
    company.start_worker(cgroup=child)
    company.start_worker(cgroup=deeper, has_log=False)
    divided = company.start_worker(cgroup=domain, has_log=False)
    for _ in company.beats(MOVE_S):  # it may not have joined its own cgroup yet
        if divided.pid in map(int, (domain / "cgroup.procs").read_text().split()):
            (threaded / "cgroup.threads").write_text(f"{divided.pid}\n")
            break
    company.wait()
