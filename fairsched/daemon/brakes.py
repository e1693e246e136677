# SPDX-License-Identifier: Apache-2.0
"""Makes the brake that this host and the configuration allow."""

from __future__ import annotations

import logging

from fairsched.act.shares import ShareFiles as ShareFiles
from fairsched.cgroup.beside import BesideLoop
from fairsched.cgroup.brake import Brake
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.freezer_v1 import FreezerV1
from fairsched.cgroup.journal import BrakeName, Journal
from fairsched.cgroup.path import Mount, find_v1_mount
from fairsched.cgroup.sigstop import Sigstop
from fairsched.cgroup.v1 import FREEZER, V1Freezer
from fairsched.config import Config
from fairsched.errors import HostUnsupported
from fairsched.host.brake import brake_lack, brake_refusal, choose_brake, gather_brakes

logger = logging.getLogger(__name__)


def make_brake(config: Config, journal: Journal, mount: Mount) -> tuple[Brake, str | None]:
    """The brake, and why nobody can be held; then it is not to be used. Raises HostUnsupported."""
    facts = gather_brakes(config)
    refusal = brake_refusal(facts, config)
    if refusal is not None:
        raise HostUnsupported(refusal, remedy="fairsched doctor says what works; or mechanisms.brake: auto")
    name, reason = choose_brake(facts, config)
    level = logging.INFO if name is BrakeName.FREEZER else logging.WARNING
    logger.log(level, "brake=%s reason=%r", "none" if name is None else name.value, reason)
    if name is BrakeName.FREEZER_V1 and (v1 := find_v1_mount(FREEZER)) is not None:
        return FreezerV1(journal, mount, V1Freezer(v1)), None
    if name is BrakeName.SIGSTOP:
        return Sigstop(journal, mount), None
    lack = brake_lack(facts, config)
    return (Freezer(journal) if name is BrakeName.CGPU else BesideLoop(Freezer(journal))), lack
