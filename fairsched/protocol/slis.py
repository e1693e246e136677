# SPDX-License-Identifier: Apache-2.0
"""Defines what is told of service levels and of the tenants' own metrics: a part of the status document (see
status.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TokenRate:
    """What a tenant's own metrics say of its output."""

    tokens_per_s: float | None = None
    """None = it has no such metrics, or they cannot be read now."""
    cv_ratio: float | None = None
    """Standard deviation of its rate in windows of one second, by their mean."""
    failures: int = 0
    """Readings of its metrics pages that failed since the companion started."""
    note: str | None = None
    """Why its pages cannot be read now; None when they can."""


@dataclass(frozen=True)
class SliStatus:
    """The service levels of the node; docs/slis.md defines them."""

    queue_delay_p99_ms: float | None = None
    """Of all tenants' work: how long it waits for a turn."""
    sm_utilization_stdev_ratio: float | None = None
    token_rate_cv_ratio: float | None = None
    """Across tenants, each by its entitlement."""
    is_fair: bool | None = None
    """token_rate_cv_ratio is below the objective; None = not known."""
    token_rate_reason: str | None = None
    """Why token_rate_cv_ratio is not known; None when it is."""
    window_s: float | None = None
    """What they look back over."""
    queue_delay_floor_ms: float | None = None
    """What the p99 may be where turns are fair, for as many tenants as there were: no scheduler could make it less."""


def slis_from_plain(data: Mapping[str, Any] | None) -> SliStatus | None:
    """The inverse of ``status.to_plain``; fields of another version are ignored."""
    return None if data is None else SliStatus(**_known(SliStatus, data))


def rate_from_plain(data: Mapping[str, Any]) -> TokenRate:
    """As above."""
    return TokenRate(**_known(TokenRate, data))


def tokens_from_plain(data: Mapping[str, Mapping[str, Any]]) -> dict[str, TokenRate]:
    """By tenant; as above."""
    return {str(tenant): rate_from_plain(rate) for tenant, rate in data.items()}


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in dataclasses.fields(kind)}
    return {key: value for key, value in data.items() if key in names}
