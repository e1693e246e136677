# SPDX-License-Identifier: Apache-2.0
"""Judges whether one work runs under several names, each below what one may have and all of them above.

Evidence is one program, or one image, over several users or tenants at once, whose processes are all connected to the
same uncommon ports. A shared ``python`` proves nothing, so a program that also runs without such a port is left, and
a port of a service that a site shares does not count. An image alone is worth little: base images are everybody's. Nor
is a program with a port of its own evidence of one work where its commands differ: each that asks a server for its
licence, or for its data, looks so. And tenants that share a user are one: a job of several ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fairsched.guard.finding import Finding, Rule, lasting
from fairsched.guard.sample import Process
from fairsched.guard.step import Look, Step
from fairsched.guard.thresholds import WELL_KNOWN, Evasion

_NUMBER = re.compile(r"[0-9]+")
Group = tuple[str, str, int | None]
"""``program`` or ``image``, its digest, the port; None: whatever its ports."""


class EvasionJudge:
    def __init__(self, rule: Rule, limits: Evasion) -> None:
        self._rule, self._limits = rule, limits
        self._since: dict[Group, float] = {}

    def feed(self, look: Look) -> Iterator[Finding]:
        since = self._since
        self._since = {}
        seen_s = min((step.dt_s for step in look.steps if step.dt_s is not None), default=None)
        if seen_s is None:
            return
        for group, steps in self._groups(look).items():
            total = self._exceeding(steps)
            if total is None:
                continue
            begun = self._since[group] = since.get(group, look.t_s - seen_s)
            if look.t_s - begun >= self._limits.for_s:
                yield from self._findings(group, steps, total, look.t_s, begun)

    def _groups(self, look: Look) -> dict[Group, list[Step]]:
        groups: dict[Group, list[Step]] = {}
        count: dict[tuple[str, str], int] = {}
        for step in look.steps:
            process, ports = step.sample.process, self._uncommon(step)
            for word, digest in (("program", process.program_digest), ("image", process.image_digest)):
                if digest is None:
                    continue
                count[word, digest] = count.get((word, digest), 0) + 1
                for port in ports:
                    groups.setdefault((word, digest, port), []).append(step)
                if word == "image":
                    groups.setdefault((word, digest, None), []).append(step)
        return {group: steps for group, steps in groups.items() if len(steps) == count[group[:2]]}

    def _uncommon(self, step: Step) -> set[int]:
        limits = self._limits
        return {
            port
            for port in step.sample.remote_ports or ()
            if port >= WELL_KNOWN and port not in limits.common_ports
        }

    def _exceeding(self, steps: Sequence[Step]) -> float | None:
        """GPUs that they use together; None: not above what one may have, or one of them is above by itself."""
        used: dict[str, float] = {}
        heads = _heads([step.sample.process for step in steps])
        for step in steps:
            whose = heads.get(owner(step.sample.process))
            if whose is not None and step.share is not None:
                used[whose] = used.get(whose, 0.0) + step.share
        if len(used) < self._limits.users or max(used.values()) > self._limits.gpus:
            return None
        total = sum(used.values())
        return total if total > self._limits.gpus else None

    def _findings(
        self, group: Group, steps: Sequence[Step], total: float, now_s: float, begun: float
    ) -> Iterator[Finding]:
        word, digest, port = group
        whose = sorted({name for step in steps if (name := owner(step.sample.process)) is not None})
        also = f", all connected to port {port}" if port is not None else "; alone it proves nothing"
        said: tuple[str, ...] = (
            f"{len(whose)} users or tenants run the {word} {digest[:19]}{also}: {', '.join(whose[:8])}",
            f"together {total:.1f} GPUs for {lasting(now_s - begun)}, and one may have {self._limits.gpus:g}",
        )
        score = self._limits.image_score if port is None else self._limits.score
        if port is not None and len({_shape(step.sample.process) for step in steps}) > 1:
            score = min(score, self._limits.unlike_score)
            said += ("their commands differ: each that asks one server for its licence or its data looks so",)
        for step in steps:
            one = step.sample
            yield Finding(self._rule.name, self._rule.kind, one.process, one.gpu, score, said, begun)


def owner(process: Process) -> str | None:
    """Its tenant, else its user."""
    if process.tenant is not None:
        return process.tenant
    return process.user if process.user is not None or process.uid is None else str(process.uid)


def _heads(processes: Sequence[Process]) -> dict[str | None, str]:
    """By owner, one that stands for all that share a user with it. Root is no user: it is everybody in containers."""
    heads: dict[str | None, str] = {name: name for one in processes if (name := owner(one)) is not None}
    first: dict[int, str] = {}
    for one in processes:
        name = owner(one)
        if name is not None and one.uid:
            old, new = heads[name], heads[first.setdefault(one.uid, name)]
            heads = {key: new if head == old else head for key, head in heads.items()}
    return heads


def _shape(process: Process) -> str:
    """Its command without numbers and directories: what the parts of one work have in common."""
    words = (word.rpartition("/")[2] for word in process.command.split())
    return _NUMBER.sub("0", " ".join(words))
