# SPDX-License-Identifier: Apache-2.0
"""Names the processes that are never ended, whoever asks (pure).

They are: the host's init, threads of the kernel, this command and all its ancestors (the shell, sshd, the service that
runs it), and fairsched's own daemon with its guardian, companion and attacher. The daemon tells its pids. Where it does
not answer, a process counts as one of it by its command, if it runs as root or as us in our pid namespace: a tenant in
a container cannot call itself so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from fairsched.reclaim.facts import Facts

_OURS = re.compile(
    r"(^|\s)-m fairsched\.|(^|/)fairsched run(\s|$)|from fairsched\.cli import main; main\(\) run "
)


def protected(
    table: Mapping[int, Facts], told: Iterable[int] = (), *, has_answer: bool, me: int | None = None
) -> dict[int, str]:
    """By pid, why it is never ended. ``told``: pids that the daemon says are its own; ``has_answer``: it does."""
    found = {pid: "a thread of the kernel" for pid, facts in table.items() if facts.is_kernel}
    found |= dict.fromkeys(told, "a process of fairsched's daemon")
    pid = os.getpid() if me is None else me
    mine = table.get(pid)
    if not has_answer:
        depth = 1 if mine is None else len(mine.namespace_pids)
        trusted = (0, os.geteuid())
        for facts in table.values():
            if facts.uid in trusted and len(facts.namespace_pids) == depth and _OURS.search(facts.command):
                found[facts.pid] = "a process of fairsched, by its command"
    seen = set[int]()
    at = table.get(mine.parent) if mine is not None else None
    while at is not None and at.pid not in seen:
        seen.add(at.pid)
        found[at.pid] = "an ancestor of this command"
        at = table.get(at.parent)
    found[pid] = "this command itself"
    return found | {0: "the kernel", 1: "the init of this host"}
