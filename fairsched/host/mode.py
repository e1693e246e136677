# SPDX-License-Identifier: Apache-2.0
"""Decides which mode is in effect, and why it is not the one that the configuration asks for (pure).

The daemon and ``doctor`` both ask here, so that they cannot say two different things of one host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairsched.model import Source

if TYPE_CHECKING:
    from fairsched.config import Config


class Mode(NamedTuple):
    """``name``: enforce, dry_run or observe. ``reason``: None where it is what the configuration says."""

    name: str
    reason: str | None = None

    is_sharing: bool = False
    """A vendor's module is told the shares."""

    @property
    def is_guarded(self) -> bool:
        """There is something that a guardian would have to undo."""
        return self.is_acting or self.is_sharing

    @property
    def is_acting(self) -> bool:
        return self.name == "enforce"


def asked(config: Config, *, is_dry_run: bool, no_brake: str | None) -> Mode:
    """What the configuration and the command line say. ``no_brake``: why nobody can be held."""
    if is_dry_run:
        return Mode("dry_run", "--dry-run")
    if config.mode != "observe" and not config.mechanisms.can_hold:
        return Mode("observe", "mechanisms.freezer is off")
    if config.mode != "observe" and no_brake is not None:
        is_sharing = config.mode == "enforce" and config.mechanisms.brake == "cgpu"
        return Mode("observe", no_brake, is_sharing)
    return Mode(config.mode)


def in_effect(mode: Mode, config: Config, *, source: Source | None, lack: str | None) -> Mode:
    """``mode``: as asked for. ``source``: of the account, as it is now. ``lack``: why there is no guardian where one
    is required."""
    if mode.is_sharing and lack is not None:
        return Mode(mode.name, lack)
    if not mode.is_acting:
        return mode
    obstacle = obstacle_of(source, config)
    if obstacle is not None:
        return Mode("observe", obstacle)
    return mode if lack is None else Mode("dry_run", lack)


def obstacle_of(source: Source | None, config: Config) -> str | None:
    """Why nobody is held on an account; None: tenants are."""
    if source is None or source.value in config.gpu.enforce_on:
        return None
    return f"gpu.enforce_on does not name {source.value}: observed, nobody is held"
