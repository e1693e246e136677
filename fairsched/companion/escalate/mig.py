# SPDX-License-Identifier: Apache-2.0
"""The step ``mig``: split a GPU that nobody uses into other MIG instances, by NVML or through NVIDIA's MIG manager.

By NVML: the first GPU of those named that has MIG mode on, no process on it, and another layout than the wanted
one. By label: where a MIG manager runs it owns the layout, and would undo what NVML was told; it is asked through
the node's label ``nvidia.com/mig.config``, and answers in ``nvidia.com/mig.config.state``. That concerns every GPU
of the node.

A layout is only ever changed while nobody is on the GPU: no tenant, as the daemon says, and no process at all, as
NVML says, which sees an idle server and whoever belongs to no tenant, too. It is asked again right before the change,
and where it does not say, nothing is changed. Instances in use cannot be destroyed, and a tenant that comes in that
moment finds no GPU. The old layout is the way back, under the same precondition.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from fairsched.base.text import counted
from fairsched.companion.escalate.mig_nvml import MigDriver, MigError, MigGpu, MigHalfDone, words
from fairsched.companion.escalate.model import Order
from fairsched.companion.escalate.steps import CheckOrder, NotNow, Plan, StepFailed
from fairsched.errors import FairschedError
from fairsched.k8s.client import KubeClient
from fairsched.protocol.status import StatusReport

CONFIG_LABEL = "nvidia.com/mig.config"
STATE_LABEL = "nvidia.com/mig.config.state"
_DONE, _FAILED, _PENDING = "success", "failed", "pending"


@dataclass(frozen=True)
class MigSettings:
    """The section escalation.mig."""

    profiles: tuple[str, ...]
    """Wanted layout of one GPU, by NVML; () = none is known, so none is made."""
    gpus: tuple[int | str, ...] | None = None
    """Index or UUID of those that may be split; None = all."""


class NvmlMigStep:
    """`driver` opens NVML: a companion that never splits a GPU never loads it."""

    name = "mig"
    timeout_s = 120.0

    def __init__(
        self, settings: MigSettings, driver: Callable[[], AbstractContextManager[MigDriver]] = MigDriver
    ) -> None:
        self._settings = settings
        self._driver = driver

    def prepare(self, order: Order, report: StatusReport | None) -> Plan:
        if not self._settings.profiles:
            raise NotNow(
                "it is not known what to split a GPU into",
                remedy="set escalation.mig.profiles, or escalation.mig.label where a MIG manager runs",
            )
        try:
            with self._driver() as driver:
                gpus = driver.gpus()
        except MigError as error:
            raise StepFailed(str(error), remedy=error.remedy) from error
        gpu = self._choose(gpus, order, report)
        undo = {"gpu": gpu.uuid, "layout": list(gpu.layout), "set": list(self._settings.profiles)}
        now = words(gpu.layout)
        return Plan(
            f"split GPU {gpu.index} ({gpu.uuid}), now {now}, into {words(self._settings.profiles)}", undo, gpu
        )

    def apply(self, order: Order, plan: Plan, check_order: CheckOrder) -> str:
        gpu: MigGpu = plan.data
        self._resplit(gpu, self._settings.profiles, check_order)
        return f"GPU {gpu.index} ({gpu.uuid}) is {words(self._settings.profiles)}, was {words(gpu.layout)}"

    def rollback(self, order: Order, report: StatusReport | None, check_order: CheckOrder) -> str:
        undo = order.undo or {}
        try:
            with self._driver() as driver:
                gpu = next((one for one in driver.gpus() if one.uuid == undo.get("gpu")), None)
        except MigError as error:
            raise StepFailed(str(error), remedy=error.remedy) from error
        if gpu is None:
            return f"nothing to do: GPU {undo.get('gpu')} is gone"
        if Counter(gpu.layout) == Counter(undo["layout"]):
            return f"nothing to do: GPU {gpu.index} is {words(gpu.layout)} already"
        if Counter(gpu.layout) != Counter(undo["set"]):
            return f"left alone: GPU {gpu.index} is {words(gpu.layout)}, which is not what it was set to here"
        busy = _busy(gpu, report)
        if busy is not None:
            raise NotNow(busy)
        self._resplit(gpu, undo["layout"], check_order)
        return f"GPU {gpu.index} is {words(undo['layout'])} again"

    def _choose(self, gpus: Sequence[MigGpu], order: Order, report: StatusReport | None) -> MigGpu:
        """The GPU to split; the sufferer's own first. Raises NotNow with the reason of each."""
        wanted = Counter(self._settings.profiles)
        reasons = []
        for gpu in sorted(gpus, key=lambda one: (one.uuid != order.gpu, one.index)):
            allowed = self._settings.gpus
            if allowed is not None and gpu.index not in allowed and gpu.uuid not in allowed:
                continue
            missing = sorted(set(wanted) - {profile.name for profile in gpu.profiles})
            if not gpu.is_enabled:
                reasons.append(f"GPU {gpu.index}: MIG mode is off")
            elif missing:
                known = ", ".join(profile.name for profile in gpu.profiles)
                reasons.append(f"GPU {gpu.index} has no profile {', '.join(missing)}, but {known}")
            elif Counter(gpu.layout) == wanted:
                reasons.append(f"GPU {gpu.index} is {words(gpu.layout)} already")
            elif (busy := _busy(gpu, report)) is not None:
                reasons.append(busy)
            else:
                return gpu
        raise NotNow("; ".join(reasons) or "there is no GPU that may be split")

    def _resplit(self, gpu: MigGpu, layout: Sequence[str], check_order: CheckOrder) -> None:
        try:
            with self._driver() as driver:
                # Look again: the plan may be a moment old, and a process that came since would lose its GPU.
                now = next((one for one in driver.gpus() if one.uuid == gpu.uuid), None)
                if now is None or now.pids or Counter(now.layout) != Counter(gpu.layout):
                    raise NotNow(f"GPU {gpu.index} has changed, or is used, since it was looked at")
                check_order()
                driver.resplit(now, layout)
        except MigHalfDone as error:
            raise StepFailed(str(error), remedy=error.remedy, is_changed=True) from error
        except MigError as error:
            raise StepFailed(f"{error}; it is split as before", remedy=error.remedy) from error


@dataclass(frozen=True)
class LabelSettings:
    """The same, where a MIG manager runs."""

    node: str
    value: str
    """Name of a configuration that the MIG manager knows, such as all-1g.10gb."""
    wait_s: float = 300.0


class LabelMigStep:
    """`connect` makes the client: credentials are looked for when the step is taken. `driver` opens NVML."""

    name = "mig"

    def __init__(
        self,
        connect: Callable[[], KubeClient],
        settings: LabelSettings,
        *,
        driver: Callable[[], AbstractContextManager[MigDriver]] = MigDriver,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._driver = driver
        self._sleep = sleep
        self._clock = clock
        self.timeout_s = 2 * settings.wait_s + 120.0

    def prepare(self, order: Order, report: StatusReport | None) -> Plan:
        labels = self._labels(self._connect(), self._settings.node)
        node, now = self._settings.node, labels.get(CONFIG_LABEL)
        if now is None and STATE_LABEL not in labels:
            raise NotNow(f"{node} has no label {CONFIG_LABEL}: no MIG manager runs there")
        if labels.get(STATE_LABEL) not in (_DONE, None):
            raise NotNow(f"the MIG manager of {node} is in state {labels[STATE_LABEL]}")
        if now == self._settings.value:
            raise NotNow(f"{node} has {CONFIG_LABEL}={now} already")
        gpus = self._check_free(report)
        undo = {
            "node": node,
            "before": now,
            "set": self._settings.value,
            "state_before": labels.get(STATE_LABEL),
        }
        return Plan(f"set {CONFIG_LABEL} of {node} from {now} to {self._settings.value}", undo, gpus)

    def apply(self, order: Order, plan: Plan, check_order: CheckOrder) -> str:
        client, undo = self._connect(), plan.undo
        self._check_nobody(plan.data)  # the plan may be a moment old
        try:
            self._set(client, undo["node"], undo["set"], check_order)
            return f"{undo['node']} is split as {undo['set']}, was {undo['before']}"
        except FairschedError as error:
            try:
                self._check_nobody(plan.data)  # who has come meanwhile keeps the GPU; it is taken back later
                self._put_back(client, undo, check_order)
            except FairschedError as second:
                raise StepFailed(f"{error}; then {second}", remedy=error.remedy, is_changed=True) from error
            raise StepFailed(
                f"{error}; {CONFIG_LABEL} is {undo['before']} again", remedy=error.remedy
            ) from error

    def rollback(self, order: Order, report: StatusReport | None, check_order: CheckOrder) -> str:
        undo = order.undo or {}
        client = self._connect()
        now = self._labels(client, undo["node"]).get(CONFIG_LABEL)
        if now != undo["set"]:
            return (
                f"left alone: {CONFIG_LABEL} of {undo['node']} is {now}, which is not what it was set to here"
            )
        self._check_free(report)
        try:
            self._put_back(client, undo, check_order)
        except FairschedError as error:
            raise StepFailed(str(error), remedy=error.remedy) from error
        return f"{CONFIG_LABEL} of {undo['node']} is {undo['before']} again"

    def _labels(self, client: KubeClient, node: str) -> Mapping[str, Any]:
        try:
            metadata = client.node(node).get("metadata") or {}
        except FairschedError as error:
            raise StepFailed(str(error), remedy=error.remedy) from error
        labels: Mapping[str, Any] = metadata.get("labels") or {}
        return labels

    def _check_free(self, report: StatusReport | None) -> Set[str]:
        """The GPUs that the daemon knows, of which nobody uses any. Raises NotNow."""
        if report is None:
            raise NotNow("the daemon has not told its status: it is not known whether the GPUs are free")
        for gpu in report.gpus:
            users = _tenants_on(gpu.uuid, report)
            if users:
                raise NotNow(f"GPU {gpu.index} is used by {', '.join(users)}")
        known = {gpu.parent_uuid or gpu.uuid for gpu in report.gpus}
        self._check_nobody(known)
        return known

    def _check_nobody(self, known: Set[str]) -> None:
        """Raises NotNow unless NVML lists all GPUs in `known`, and no process on any GPU of the node."""
        try:
            with self._driver() as driver:
                gpus = driver.gpus()
        except MigError as error:
            raise NotNow(f"NVML does not say whether the GPUs are free: {error}") from error
        missing = sorted(known - {gpu.uuid for gpu in gpus})
        if missing or not gpus:
            raise NotNow(
                f"NVML does not list {', '.join(missing) or 'any GPU'}: nobody knows whether it is free"
            )
        for gpu in gpus:
            if gpu.pids:
                raise NotNow(f"GPU {gpu.index} is used by {counted(len(gpu.pids), 'process', 'processes')}")

    def _put_back(self, client: KubeClient, undo: Mapping[str, Any], check_order: CheckOrder) -> None:
        """The label as it was. Raises StepFailed, Refused or Unreachable."""
        node, before = undo["node"], undo["before"]
        if before is not None:
            self._set(client, node, before, check_order)
            return
        labels: dict[str, Any] = {CONFIG_LABEL: None}
        # A manager that is asked for nothing may say nothing: a "pending" of ours would stand there for ever, and
        # this step be refused for it. What the manager has said is its own.
        if self._labels(client, node).get(STATE_LABEL) == _PENDING:
            labels[STATE_LABEL] = undo.get("state_before")
        check_order()
        client.patch_node(node, {"metadata": {"labels": labels}})

    def _set(self, client: KubeClient, node: str, value: str, check_order: CheckOrder) -> None:
        """Set the label and wait for the manager. Raises StepFailed, Refused or Unreachable."""
        check_order()
        # The state is ours to begin with: a "success" that is read next is then that of the new configuration.
        client.patch_node(node, {"metadata": {"labels": {CONFIG_LABEL: value, STATE_LABEL: _PENDING}}})
        end_s = self._clock() + self._settings.wait_s
        while True:
            state = (client.node(node).get("metadata") or {}).get("labels", {}).get(STATE_LABEL)
            if state == _DONE:
                return
            if state == _FAILED:
                raise StepFailed(f"the MIG manager of {node} failed to apply {value}")
            if self._clock() >= end_s:
                raise StepFailed(f"the MIG manager of {node} is {state} after {self._settings.wait_s:g} s")
            self._sleep(1.0)


def _busy(gpu: MigGpu, report: StatusReport | None) -> str | None:
    """Who uses the GPU; None = nobody, as far as NVML and the daemon know."""
    if report is None:
        return f"GPU {gpu.index}: the daemon has not told its status"
    tenants = _tenants_on(gpu.uuid, report)
    if tenants:
        return f"GPU {gpu.index} is used by {', '.join(tenants)}"
    return (
        f"GPU {gpu.index} is used by {counted(len(gpu.pids), 'process', 'processes')}" if gpu.pids else None
    )


def _tenants_on(uuid: str, report: StatusReport) -> list[str]:
    """Those on the GPU or any MIG instance of it."""
    here = {uuid, *(gpu.uuid for gpu in report.gpus if gpu.parent_uuid == uuid)}
    return [
        tenant.name
        for tenant in report.tenants
        if any(tenant.contexts_by_gpu.get(one) for one in here)
        or any(gpu.uuid in here and gpu.has_demand for gpu in tenant.gpus)
    ]
