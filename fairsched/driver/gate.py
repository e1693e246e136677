# SPDX-License-Identifier: Apache-2.0
"""Which cgroup may open which NVIDIA devices: from configuration and devices to rules (pure).

A rule holds for its cgroup and everything below, unless something below has a rule of its own. No cgroup gets
more than the one around it: a child's list counts as far as its parent's goes.

Words: a *list* is what `gpus` says; a *rule* is that with the GPUs resolved to device minors; *top* is the outermost
cgroup around a rule, where the program is attached: a container runtime may clear its own cgroup of programs,
never those above.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairsched.config import patterns
from fairsched.driver.inventory import Devices

if TYPE_CHECKING:
    from fairsched.config.models import Config
    from fairsched.config.owners import CgroupOwners, GpuList

ALL = "all"
NONE = "none"


@dataclass(frozen=True)
class Rule:
    """What one cgroup may open."""

    cgroup_id: int
    path: str
    """For display."""
    tenant: str | None
    """None: the default for cgroups that no tenant with a list owns."""
    gpus: frozenset[int] = frozenset()
    """Device minors."""
    is_all: bool = False

    def __str__(self) -> str:
        return ALL if self.is_all else ",".join(map(str, sorted(self.gpus))) or NONE


@dataclass(frozen=True)
class GateRules:
    """Everything the gate is to do."""

    by_cgroup: Mapping[int, Rule]
    tops: Mapping[int, str]
    """Path by id of the cgroups to attach to."""
    warnings: tuple[str, ...] = ()


def is_asked_for(config: Config) -> bool:
    """Whether this configuration asks for a gate at all."""
    from fairsched.config.models import walk

    return config.devices.default == "deny" or any(node.gpus is not None for _, node in walk(config.tenants))


Left = Mapping[int, tuple[frozenset[int], bool]]
"""What is in force by cgroup id: device minors, and whether it is all of them."""


def choose_rules(
    paths: Mapping[int, str],
    owners: CgroupOwners,
    config: Config,
    devices: Devices,
    max_level: int,
    left: Left | None = None,
) -> GateRules:
    """The rules for the cgroups there are (``paths`` by id).

    What an earlier daemon has ``left`` on one stays until it is known what that one is called, and so whose it is.
    """
    by_cgroup: dict[int, Rule] = {}
    warnings: dict[str, None] = {}
    defaults = {f"/{path}" for path in config.devices.under} if config.devices.default == "deny" else set()
    for cgroup_id, path in paths.items():
        owner = owners.owner(path)
        if owner is not None and owner.cgroup == path and owner.gpu_lists:
            rule, complaints = resolve(cgroup_id, path, owner.tenant, owner.gpu_lists, devices)
        elif left is not None and cgroup_id in left and owners.is_waiting(path):
            gpus, is_all = left[cgroup_id]
            rule, complaints = Rule(cgroup_id, path, None, gpus, is_all), ()
        elif path in defaults and (owner is None or not owner.gpu_lists):
            rule, complaints = Rule(cgroup_id, path, None), ()
        else:
            continue
        if path.count("/") > max_level:
            warnings[f"{path} lies deeper than {max_level} levels: no device rule for it"] = None
            continue
        warnings.update(dict.fromkeys(complaints))
        by_cgroup[cgroup_id] = rule
    wanted = {"/" + rule.path.split("/")[1] for rule in by_cgroup.values()}
    tops = {cgroup_id: path for cgroup_id, path in paths.items() if path in wanted}
    return GateRules(by_cgroup, tops, tuple(warnings))


def places_to_watch(paths: Mapping[int, str], owners: CgroupOwners, config: Config) -> dict[int, str]:
    """Cgroups below which a new one may need a rule of its own: not the inside of those that have a list."""
    heads = set(config.devices.under if config.devices.default == "deny" else ())
    for name, tenant in config.tenants.items():
        if tenant.gpus is not None or tenant.children:
            heads.update(config.cgroup_places(name))
    first = {head.split("/")[0] for head in heads}
    found = {}
    for cgroup_id, path in paths.items():
        if not any(patterns.claimed_prefix(head, path.split("/")[1]) for head in first):
            continue
        owner = owners.owner(path)
        if owner is None or not owner.is_leaf or not owner.gpu_lists:
            found[cgroup_id] = path
    return found


def resolve(
    cgroup_id: int, path: str, tenant: str, lists: Iterable[GpuList], devices: Devices
) -> tuple[Rule, tuple[str, ...]]:
    """One rule of the lists around it, the outermost first, and what is odd about them."""
    minors = {uuid.lower(): minor for minor, uuid in devices.gpus.items() if uuid}
    rule = Rule(cgroup_id, path, tenant, is_all=True)
    complaints: list[str] = []
    for one in lists:
        if one.gpus == ALL:
            continue
        gpus = set()
        for gpu in () if one.gpus == NONE else one.gpus:
            minor = gpu if isinstance(gpu, int) else minors.get(gpu.lower())
            if minor is None or (devices.has_driver and minor not in devices.gpus):
                complaints.append(f"{one.key}: there is no GPU {gpu} now; there is {_there_is(devices)}")
            if minor is None:
                continue
            if not rule.is_all and minor not in rule.gpus:
                complaints.append(f"{one.key}: GPU {gpu} is not among the parent's ({rule}): left out")
                continue
            gpus.add(minor)
        rule = Rule(cgroup_id, path, tenant, frozenset(gpus))
    return rule, tuple(complaints)


def _there_is(devices: Devices) -> str:
    known = [f"{minor}{f' ({uuid})' if uuid else ''}" for minor, uuid in sorted(devices.gpus.items())]
    return ", ".join(known) or "none that the driver names"
