# SPDX-License-Identifier: Apache-2.0
"""Whether the GPU's trace of context switches is asked for here, and the row of ``doctor`` about it (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairsched.gpu.trace import obstacle as obstacle_of_driver
from fairsched.host.facts import Check

if TYPE_CHECKING:
    from fairsched.config import Config


def obstacle(config: Config, driver_version: str | None) -> str | None:
    """Why it is not tried; None: it is."""
    if config.mechanisms.trace == "off":
        return "mechanisms.trace is off"
    return obstacle_of_driver(driver_version, is_asked_for=is_required(config))


NOT_ASKED_FOR = "it is not asked for: alone it takes the pauses of who has the GPU to itself for work"


def obstacle_alone(config: Config, driver_version: str | None) -> str | None:
    """Why it is not the account by itself, without eBPF; None: it is. On an H100 the GPU stood idle for a third of the
    time beside a service with pauses (decision 0031), so only who asks gets it."""
    found = obstacle(config, driver_version)
    return NOT_ASKED_FOR if found is None and not is_required(config) else found


def is_required(config: Config) -> bool:
    """Whether the daemon does not start without."""
    return config.mechanisms.trace == "required" or config.gpu.source == "trace"


def check(config: Config, driver_version: str) -> Check:
    """The row of ``doctor``."""
    wish, why = config.mechanisms.trace, obstacle(config, driver_version)
    if why is None:
        return Check("trace", "ok", f"tried with driver {driver_version}", "the GPU tells whose turn it is")
    follows = "turns are replayed: shares are some points less exact"
    if wish == "off":
        return Check("trace", "ok", why, follows)
    is_known = obstacle_of_driver(driver_version, is_asked_for=True) is None
    remedy = "try it where nobody is hurt: mechanisms.trace: required" if is_known else ""
    return Check("trace", "fail" if is_required(config) else "ok", why, follows, remedy)
