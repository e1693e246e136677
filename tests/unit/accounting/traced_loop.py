# SPDX-License-Identifier: Apache-2.0
"""The policy's model of shared GPUs, looked at through a trace of context switches and nothing else.

Approach. :class:`tests.unit.accounting.sampled_loop.SampledLoop`, whose GPUs write down who gets the engine and who
leaves it as the hardware does: who runs dry while nobody waits stays. The account is the daemon's, with that of samples
below it. The model knows the truth.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairsched.accounting.traced import TracedAccount
from fairsched.gpu.trace import Switch, TraceLost
from fairsched.model import PolicyParams, ReasonCode
from tests.unit.accounting.sampled_loop import SampledLoop
from tests.unit.policy.model_gpu import SLICE_NS, SWITCH_NS, Tenant
from tests.unit.policy.model_processes import Process

CHANNELS = 10
"""From pid to channel."""


class FakeTrace:
    """Of one GPU."""

    def __init__(self, loop: TracedLoop) -> None:
        self._loop = loop
        self.switches: list[Switch] = []
        self.resident: int | None = None
        self.is_whole = True
        self.is_lost = False

    @property
    def told_ns(self) -> int:
        return self._loop.now

    def read(self) -> tuple[list[Switch], bool]:
        if self.is_lost:
            raise TraceLost("it is gone")
        found, self.switches = self.switches, []
        is_whole, self.is_whole = self.is_whole, True
        return found, is_whole

    def give(self, pid: int | None, now_ns: int) -> None:
        """The engine goes to this process; None: to nobody."""
        if self.resident is not None:
            self.switches.append(Switch(now_ns, self.resident, CHANNELS * self.resident, False))
        if pid is not None:
            self.switches.append(Switch(now_ns, pid, CHANNELS * pid, True))
        self.resident = pid


class TracedLoop(SampledLoop):
    """Run tenants under the traced account's view of them."""

    def __init__(self, tenants: Sequence[Tenant], *, seed: int, is_enforced: bool = True) -> None:
        self.traces: dict[str, FakeTrace] = {}
        super().__init__(tenants, seed=seed, is_enforced=is_enforced)
        self.below = self.account
        self.account = TracedAccount(self.below, self._group_of, (SLICE_NS, SWITCH_NS))  # type: ignore[assignment]
        self.account.tenant_of = self.names.get
        self.params = PolicyParams(sees_queues=False)
        self.traced.slots = lambda: range(len(self.gpus))
        for slot, name in enumerate(self.gpus):
            self.traces[name] = FakeTrace(self)
            self.traced.begin(slot, self.traces[name])

    @property
    def traced(self) -> TracedAccount:
        """The account."""
        assert isinstance(self.account, TracedAccount)
        return self.account

    def _next(self, name: str) -> None:
        super()._next(name)
        running, trace = self.gpus[name].running, self.traces[name]
        if running is not None and self.pids[running] != trace.resident:
            trace.give(self.pids[running], self.now)

    def _exit(self, process: Process) -> None:
        super()._exit(process)
        for trace in self.traces.values():
            if trace.resident == self.pids[process]:
                trace.give(None, self.now)

    def hold(self, name: str) -> None:
        """By hand."""
        self._hold(name, self.now + 10**9, ReasonCode.OVER_ENTITLEMENT)
