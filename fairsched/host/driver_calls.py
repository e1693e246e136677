# SPDX-License-Identifier: Apache-2.0
"""Makes the row of ``fairsched doctor`` about how calls to the driver are seen (pure)."""

from __future__ import annotations

from fairsched.driver.hooks import NO_DRIVER, ORDER, Candidates, Hook, HookInForce
from fairsched.host.facts import Check

_MISSING = "no contexts and no VRAM per tenant"


_SEEN: dict[Hook, str] = {
    "kprobe": "the driver's own functions",
    "lsm": "security module hooks",
    "tracepoint": "system call tracepoints",
}


def check(candidates: Candidates, in_force: HookInForce | None = None) -> Check:
    """The row of ``fairsched doctor``: which hook, and why not a better one.

    ``in_force``: of a running daemon, which has tried. Without one, or while it waits for a driver, the row says what
    will be tried.
    """
    if in_force is not None and in_force.hook is None and in_force.reason != NO_DRIVER:
        fact = f"the running daemon sees none: {in_force.reason}"
        remedy = "see its log for what was tried; mechanisms.driver: off if nobody wants it"
        return Check("driver calls", "warn", fact, _MISSING, remedy)
    tried = in_force if in_force is not None and in_force.hook is not None else None
    chosen = candidates.best if tried is None else tried.hook
    reasons = candidates.obstacles if tried is None else {**candidates.obstacles, **tried.refused}
    better = ORDER[: ORDER.index(chosen)] if chosen else ORDER
    why = "; ".join(f"no {hook}: {reasons[hook]}" for hook in better if hook in reasons)
    if chosen is None:
        remedy = "use a kernel with BTF and kprobes, BPF LSM or tracepoints of system calls"
        return Check("driver calls", "warn", why, _MISSING, remedy)
    follows = ["in force" if tried is not None else "tried when the daemon runs and the driver is there"]
    if chosen != "kprobe":
        follows.append("costs every system call of the node a little")
    fact = f"{_SEEN[chosen]}{f' ({why})' if why else ''}"
    return Check("driver calls", "ok", fact, ", ".join(follows))
