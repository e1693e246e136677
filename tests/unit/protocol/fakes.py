# SPDX-License-Identifier: Apache-2.0
"""A daemon that only answers, and a thread that plays its loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairsched.base.later import Errand, Later
from fairsched.base.wait import is_readable
from fairsched.config import Config, Overrides, Setting, check_set, diff, from_bytes, list_settings, render
from fairsched.errors import ConfigError
from fairsched.model import ActionKind, Confidence, GraphWork, Reason, ReasonCode, Source, TenantClass
from fairsched.protocol.listen import Peer
from fairsched.protocol.process import ProcessStatus
from fairsched.protocol.server import ControlServer
from fairsched.protocol.status import (
    DecisionRecord,
    GateState,
    GateStatus,
    GpuStatus,
    StatusReport,
    TenantGpuStatus,
    TenantState,
    TenantStatus,
)

GPU = "GPU-5f2c1a90-1111-2222-3333-444455556666"
CONFIG = """
tenants:
  chat: {weight: 4, min: 20%}
  batch: {class: batch, quota: 50%}
"""


def hold(t_ns: int = 1_000_000_000, *, is_dry_run: bool = False, error: str | None = None) -> DecisionRecord:
    reason = Reason(ReasonCode.OVER_ENTITLEMENT, GPU, -62_000_000, 0.25, 0.31, 8_000_000, 10_000_000)
    return DecisionRecord(
        t_ns, 1_700_000_000.125, ActionKind.HOLD, "batch", reason, None, t_ns + 5, is_dry_run, error
    )


def thaw(t_ns: int = 1_040_000_000, code: ReasonCode = ReasonCode.CAUGHT_UP) -> DecisionRecord:
    reason = Reason(code, GPU, lag_ns=-2_000_000)
    return DecisionRecord(t_ns, 1_700_000_000.165, ActionKind.THAW, "batch", reason, held_ns=40_000_000)


GRAPHS = GraphWork(3, 20.1, 95.4, 0.04, is_measured=True)


def status() -> StatusReport:
    chat = TenantStatus(
        name="chat",
        state=TenantState.RUN,
        weight=4,
        entitled_ratio=0.8,
        used_ratio=0.792,
        lag_ms=8.25,
        queue_delay_p50_ms=1.25,
        held_ms_per_s=0.0,
        confidence=Confidence.HIGH,
        error_ratio=0.16,
        is_overridden=True,
        gpus=(
            TenantGpuStatus(GPU, 0.8, 0.792, 8.25, True, Confidence.HIGH, error_ratio=0.16, graphs=GRAPHS),
        ),
    )
    batch = TenantStatus(
        name="batch",
        state=TenantState.HELD,
        weight=1,
        tenant_class=TenantClass.BATCH,
        entitled_ratio=0.2,
        used_ratio=0.31,
        lag_ms=-62,
        held_ms_per_s=118.4,
        confidence=Confidence.HIGH,
        error_ratio=0.16,
        last=hold(),
    )
    away = TenantStatus(name="a-tenant-with-a-very-long-name/and-a-child", state=TenantState.AWAY, weight=1)
    return StatusReport(
        daemon_version="0.1.0",
        pid=7,
        t_ns=1_012_000_000,
        wall_time_s=1_700_000_000.137,
        uptime_s=7980,
        mode="enforce",
        tick_ms=100,
        window_s=1,
        source=Source.EBPF,
        source_error_points={"1": 10.0, "10": 5.1, "60": 4.4},
        fairness_error_ratio=0.012,
        gpus=(GpuStatus(GPU, 0, "NVIDIA L40S", 0.994, None, 18 * 2**30, 45 * 2**30),),
        tenants=(chat, batch, away),
        warnings=(
            "3 events were lost because a BPF map was full; the account of new processes may be too low",
        ),
    )


def gate(**changed: Any) -> GateStatus:
    known = GateStatus(GateState.ON, rules=3, attached=("/gpu.slice",), denied={"": 4, "batch": 12}, blind=0)
    return replace(known, **changed)


def processes() -> list[ProcessStatus]:
    pod = "0a1b2c3d-1111-2222-3333-444455556666"
    return [
        ProcessStatus(
            pid=4194301,
            gpu=GPU,
            tenant="chat",
            cgroup=f"/kubepods/pod{pod}/{'3f' * 32}",
            container_id="3f" * 32,
            pod_uid=pod,
            namespace_pid=1,
            contexts=2,
            vram_bytes=18 * 2**30,
            gpu_time_s=7980.0,
            command="/usr/bin/python3 -m vllm.entrypoints.openai.api_server --model some/model",
        ),
        ProcessStatus(
            pid=812,
            gpu=GPU,
            tenant="a-tenant-with-a-very-long-name",
            cgroup="/gpu.slice/a-tenant-with-a-very-long-name",
            contexts=1,
            vram_bytes=0,
            idle_s=1500.0,
            command="train",
            note="has a context, no launch of it was seen",
        ),
        ProcessStatus(pid=77, gpu="GPU-99999999-0", gpu_time_s=1.25),
    ]


class FakeDaemon:
    """A ControlHandler with a configuration and nothing behind it."""

    def __init__(self) -> None:
        self.config: Config = from_bytes(CONFIG.encode(), "fake.yaml")
        self.overrides = Overrides()
        self.asked: list[str] = []
        self.told: list[Mapping[str, Any]] = []
        self.mode, self.well_age_s = "enforce", 0.5
        self.disk: Errand[None] | None = None
        """With one: what is set waits for what a test has it do."""
        self.owed: list[tuple[Later[list[str]], list[str]]] = []
        self._idle: Errand[None] = Errand("idle")

    def fileno(self) -> int:
        return (self.disk or self._idle).fileno()

    def settle(self) -> None:
        assert self.disk is not None
        if self.disk.take() is not None:
            for later, lines in self.owed:
                later.give(lines)

    def ping(self) -> Any:
        return {
            "version": "0.1.0",
            "pid": 7,
            "mode": self.mode,
            "wanted_mode": "enforce",
            "mode_reason": None if self.mode == "enforce" else "no brake works here",
            "well_age_s": self.well_age_s,
        }

    def status(self) -> Any:
        self.asked.append("status")
        return status()

    def explain(self, tenant: str) -> Any:
        if tenant == "crash":
            raise RuntimeError("boom")
        if tenant == "long":
            return "x" * 2_000_000
        return [hold(), thaw()] if tenant == "batch" else []

    def decisions(self, since_ns: int) -> Any:
        decisions = [one for one in (hold(), thaw()) if one.t_ns > since_ns]
        return {"decisions": decisions, "events": [], "is_gapless": True}

    def tell(self, finding: Mapping[str, Any], by: Peer) -> Any:
        self.told.append(finding)

    def processes(self) -> Any:
        return processes()

    def tenant_list(self) -> Any:
        found: list[Setting] = [
            one for one in list_settings(self.config, self.overrides) if one.key[0] == "tenants"
        ]
        stale = self.overrides.stale(self.config)
        kept = {name: dict(self.overrides.tenants[name]) for name in stale}
        return {"settings": found, "stale": stale, "kept": kept}

    def tenant_set(self, tenant: str, values: Mapping[str, Any], by: Peer) -> Any:
        check_set(tenant, values, self.config)
        lines = self._change(self.overrides.with_set(tenant, values))
        if self.disk is None:
            return lines
        self.owed.append((Later(), lines))
        return self.owed[-1][0]

    def tenant_unset(self, tenant: str, keys: Sequence[str], by: Peer) -> Any:
        return self._change(self.overrides.with_unset(tenant, keys))

    def config_show(self) -> Any:
        return {"path": None, "yaml": render(self.config, self.overrides)}

    def config_file(self) -> Any:
        return {"yaml": render(self.config)}

    def reload(self, by: Peer) -> Any:
        raise ConfigError("unknown key", file="fake.yaml:3", key="wieght", remedy="did you mean 'weight'?")

    def _change(self, overrides: Overrides) -> list[str]:
        before, after = self.overrides.apply(self.config), overrides.apply(self.config)
        self.overrides = overrides
        return [str(change) for change in diff(before, after)]


@contextmanager
def serving(path: Path, handler: FakeDaemon | None = None) -> Iterator[ControlServer]:
    """A server on `path` whose loop runs in a thread until the block is left."""
    server = ControlServer(path, handler or FakeDaemon())
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            is_readable(server, 0.02)
            server.handle_ready()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        thread.join()
        server.close()
