# SPDX-License-Identifier: Apache-2.0
"""Names in the section ``guard`` that are nobody's on this host: worth a word, and no error."""

from __future__ import annotations

import grp
import pwd
from contextlib import suppress

from fairsched.config import Config
from fairsched.config.guard import notes


def unknown_names(config: Config) -> list[str]:
    """Sentences, one for each."""
    return list(notes(config.guard, config.tenants, _is_user, _is_group))


def _is_user(name: str) -> bool:
    with suppress(KeyError):
        pwd.getpwnam(name)
        return True
    return False


def _is_group(name: str) -> bool:
    with suppress(KeyError):
        grp.getgrnam(name)
        return True
    return False
