# SPDX-License-Identifier: Apache-2.0
"""From the section ``escalation`` of the configuration to limits, steps and files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from fairsched.companion.escalate.audit import Audit
from fairsched.companion.escalate.command import CommandStep
from fairsched.companion.escalate.desk import EscalationDesk
from fairsched.companion.escalate.evict import EvictSettings, EvictStep
from fairsched.companion.escalate.mig import LabelMigStep, LabelSettings, MigSettings, NvmlMigStep
from fairsched.companion.escalate.model import QUEUE_DELAY, TOKEN_CV, EscalationLimits, Rung
from fairsched.companion.escalate.part import EscalationPart
from fairsched.companion.escalate.pods import EvictionRules
from fairsched.companion.escalate.quota import QuotaStep
from fairsched.companion.escalate.steps import NotNow, Step
from fairsched.companion.escalate.store import Store
from fairsched.companion.values import Daemon
from fairsched.config import Config
from fairsched.config.escalation import Escalation
from fairsched.errors import ConfigError
from fairsched.k8s import grants
from fairsched.k8s.client import KubeClient
from fairsched.k8s.kubeconfig import NoCluster, access
from fairsched.k8s.nodename import node_name
from fairsched.protocol.client import ControlClient


def directory_of(config: Config) -> Path:
    """Where state and audit are."""
    return config.state_dir / "escalation"


def books_of(config: Config) -> tuple[Store, Audit]:
    """Both; nothing is opened yet."""
    directory = directory_of(config)
    return Store(directory), Audit(directory)


def part_of(config: Config) -> EscalationPart:
    """The companion's part. Raises ConfigError when a step of the ladder lacks its settings."""
    store, audit = books_of(config)
    daemon = ControlClient(config.socket_path)
    desk = EscalationDesk(limits_of(config.escalation), store, audit, "companion")
    return EscalationPart(desk, steps_of(config, daemon))


def limits_of(section: Escalation) -> EscalationLimits:
    """What the policy wants to know."""
    thresholds = {QUEUE_DELAY: section.queue_delay_p99_ms, TOKEN_CV: section.token_rate_cv}
    return EscalationLimits(
        ladder=tuple(_rung(section, step) for step in section.ladder),
        thresholds={signal: value for signal, value in thresholds.items() if value is not None},
        clear_ratio=section.clear_ratio,
        bad_for_s=float(section.for_s),
        clear_for_s=float(section.clear_for_s),
        cool_down_s=float(section.cool_down_s),
        max_actions_per_hour=section.max_actions_per_hour,
        again_s=float(section.again_s),
        is_dry_run=section.dry_run,
    )


def _rung(section: Escalation, step: str) -> Rung:
    quota = section.quota
    if step == "quota":
        most = max(1, math.floor(quota.max_raise / quota.step + 1e-9))
        return Rung(step, float(quota.cool_down_s), most, float(quota.lapse_s))
    pauses = {
        "mig": section.mig.cool_down_s,
        "evict": section.evict.cool_down_s,
        "command": section.command.cool_down_s,
    }
    return Rung(step, float(pauses[step]))


def steps_of(config: Config, daemon: Daemon, *, only: tuple[str, ...] | None = None) -> Mapping[str, Step]:
    """The steps on the ladder, or those named. Raises ConfigError for one that lacks its settings."""
    makers: Mapping[str, Callable[[], Step]] = {
        "quota": lambda: QuotaStep(daemon, config.escalation.quota.step, config.escalation.quota.max_raise),
        "mig": lambda: _mig(config.escalation),
        "evict": lambda: _evict(config.escalation),
        "command": lambda: _command(config.escalation),
    }
    return {name: makers[name]() for name in (config.escalation.ladder if only is None else only)}


def _mig(section: Escalation) -> Step:
    mig = section.mig
    if mig.label is not None:
        return LabelMigStep(
            _connector(section),
            LabelSettings(node_name(section.kubernetes.node), mig.label, float(mig.wait_s)),
        )
    return NvmlMigStep(MigSettings(mig.profiles, None if mig.gpus == "all" else mig.gpus))


def _evict(section: Escalation) -> Step:
    evict = section.evict
    rules = EvictionRules(
        protected_namespaces=evict.protected_namespaces,
        namespaces=evict.namespaces,
        max_priority=evict.max_priority,
        gpu_resources=evict.gpu_resources,
    )
    settings = EvictSettings(
        node=node_name(section.kubernetes.node),
        rules=rules,
        is_cordoning=evict.cordon,
        labels=evict.labels,
        grace_s=evict.grace_s,
        wait_s=float(evict.wait_s),
    )
    return EvictStep(_connector(section), settings)


def _command(section: Escalation) -> Step:
    command = section.command
    if not command.run:
        raise _lacks("command.run", "name the program by its absolute path, and its arguments")
    return CommandStep(command.run, limit_s=float(command.timeout_s), has_undo=command.undo)


def _connector(section: Escalation) -> Callable[[], KubeClient]:
    def connect() -> KubeClient:
        try:
            return KubeClient(access(section.kubernetes.kubeconfig), grant=grants.ESCALATION)
        except NoCluster as error:
            raise NotNow(str(error), remedy=error.remedy) from None

    return connect


def _lacks(key: str, remedy: str) -> ConfigError:
    return ConfigError("is needed for this step", key=f"escalation.{key}", remedy=remedy)
