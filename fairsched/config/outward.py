# SPDX-License-Identifier: Apache-2.0
"""Sections of the configuration for what looks outward: the companion's business, not the scheduler's."""

from __future__ import annotations

from pydantic import Field

from fairsched.config.section import AbsolutePath, Section
from fairsched.config.values import Size


class Control(Section):
    """The socket that `fairsched status` and its siblings talk to."""

    socket: AbsolutePath | None = Field(
        default=None, description="Unix socket of the daemon; null means run_dir/fairsched.sock."
    )
    group: str = Field(
        default="fairsched",
        min_length=1,
        max_length=32,
        description="Members may ask and change; without such a group only root may.",
    )


class Slis(Section):
    """Service levels, and how tenants' own token counters are read; see docs/slis.md."""

    window_s: int = Field(default=60, ge=12, le=600, description="What the service levels look back over.")
    timeout_s: int = Field(
        default=5,
        ge=1,
        le=60,
        description="Longest wait for a metrics page. A held tenant answers when it is thawed, so more than the "
        "longest hold of a tenant with token counters.",
    )


class Metrics(Section):
    """Prometheus export."""

    listen: str | None = Field(
        default=None,
        pattern=r"^\S*:[0-9]{1,5}$",
        description="ADDRESS:PORT of the exporter, [ADDRESS]:PORT for IPv6; :PORT is 127.0.0.1; null = off.",
    )
    web_config: AbsolutePath | None = Field(
        default=None,
        description="A file with TLS and passwords for it, in the format of Prometheus' exporters; docs/metrics.md.",
    )
    max_tenants: int = Field(
        default=256, ge=1, le=1024, description="Tenants that have series; further ones are only counted."
    )


class History(Section):
    """What `fairsched report` draws from: a database in state_dir, bounded by age and by size."""

    enabled: bool = Field(default=False, description="Whether the past is written down.")
    interval_s: int = Field(default=10, ge=1, le=3600, description="Time that one row of it stands for.")
    keep_hours: int = Field(default=168, ge=1, le=8784, description="Older rows are dropped.")
    max_bytes: Size = Field(
        default=64 << 20,
        ge=1 << 20,
        description="The oldest rows are dropped when the files would grow beyond it; such as 64MiB.",
    )
