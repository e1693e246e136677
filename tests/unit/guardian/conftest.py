# SPDX-License-Identifier: Apache-2.0
"""The guardian acts on cgroups and on the journal: the fixtures are those of the cgroup tests."""

from __future__ import annotations

from tests.unit.cgroup.conftest import entry_of, fake, journal

__all__ = ["entry_of", "fake", "journal"]
