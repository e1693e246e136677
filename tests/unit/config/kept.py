# SPDX-License-Identifier: Apache-2.0
"""Changes of settings as whoever asks for them sees them: there is an answer when the disk has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairsched.base.later import Later
from fairsched.base.wait import is_readable
from fairsched.config.settings import Lines, Settings

PATIENCE_S = 30.0


def answer(settings: Settings, later: Later[Lines]) -> Lines:
    """What the daemon's loop does for it. Raises what was answered."""
    while not later.is_there:
        assert is_readable(settings, PATIENCE_S), "it is kept, or is not"
        settings.settle()
    return later.take()


def set_tenant(settings: Settings, tenant: str, values: Mapping[str, Any]) -> Lines:
    """The changes as lines."""
    return answer(settings, settings.set_tenant(tenant, values))


def unset_tenant(settings: Settings, tenant: str, keys: Sequence[str]) -> Lines:
    """The changes as lines."""
    return answer(settings, settings.unset_tenant(tenant, keys))
