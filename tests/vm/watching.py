# SPDX-License-Identifier: Apache-2.0
"""The hooks on the test driver's calls, at once, and their books against the driver's own."""

from __future__ import annotations

from fairsched.bpf import child
from fairsched.bpf.abi import DriverCount
from fairsched.driver import devices, hooks
from fairsched.driver.books import DriverBooks, DriverCalls
from fairsched.driver.probe import DriverProbe
from tests.vm import rm

HOOKS: tuple[hooks.Hook, ...] = ("kprobe", "lsm")
GROUPS: dict[hooks.Hook, list[str]] = {
    "kprobe": ["life", "kprobe"],
    "lsm": ["life", "lsm", "tracepoint"],
}
HARMLESS = {"objects_made", "objects_gone", "replaced", "bad_read", "file_full", "unseen"}
"""Of these, programs that pass nonsense make some; the others are never counted."""

Totals = dict[tuple[int, int, int], tuple[int, int]]
"""(cgroup, pid, GPU) -> (contexts, VRAM bytes)."""


class Watch:
    """Both hooks, each with maps of its own."""

    def __init__(self, probes: dict[hooks.Hook, DriverProbe], gpus: int) -> None:
        facts = hooks.read_facts()
        assert hooks.choose(facts).hooks[:2] == HOOKS, facts
        self.probes = probes
        self.before: dict[str, dict[str, int]] = {}
        self.books: dict[str, DriverBooks] = {}
        for hook, probe in probes.items():
            probe.attach(hook, facts)
            probe.set_majors(devices.read_majors())
            probe.set_instances({gpu: gpu for gpu in range(gpus)})
            self.books[hook] = DriverBooks(probe)
            self.before[hook] = probe.counts()
            for key, _ in [*probe.calls()]:
                probe.forget_calls(key)

    def count(self, hook: hooks.Hook, what: DriverCount) -> int:
        return self.probes[hook].count(what) - self.before[hook][what.name.lower()]

    def seen(self, hook: str) -> Totals:
        return {
            (use.cgroup_id, use.tgid, -1 if use.gpu is None else use.gpu): (use.contexts, use.vram_bytes)
            for use in self.books[hook].read().uses
        }

    def agree(self, driver: rm.Driver, when: str = "") -> None:
        said: Totals = {}
        for use in driver.books().uses:
            key = (use.cgroup, use.pid, use.gpu)
            contexts, vram = said.get(key, (0, 0))
            said[key] = (contexts + use.contexts, vram + use.vram)
        said = {key: value for key, value in said.items() if any(value)}
        for hook in self.probes:
            seen = self.seen(hook)
            assert seen == said, f"{hook} {when}: {seen}, and the driver says {said}"

    def calls(self, hook: str, pid: int) -> DriverCalls:
        (found,) = [calls for calls in self.books[hook].read().calls if calls.tgid == pid]
        return found

    def check_counts(self) -> None:
        """Nothing was counted that should not happen."""
        for hook, probe in self.probes.items():
            counts = {name: n - self.before[hook][name] for name, n in probe.counts().items()}
            odd = {name: n for name, n in counts.items() if n and name not in HARMLESS}
            assert odd == {}, f"{hook}: {odd}"

    def close(self) -> None:
        for probe in self.probes.values():
            probe.detach()


def load(groups: list[str]) -> DriverProbe:
    """Nothing is attached yet."""
    loaded = child.load("nvidia_ioctl", groups)
    assert loaded.refused == {}
    return DriverProbe(loaded)
