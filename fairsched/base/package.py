# SPDX-License-Identifier: Apache-2.0
"""Tells where this package lies, and gives a child an environment in which it imports the same one."""

from __future__ import annotations

import os
from collections.abc import Mapping

PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The directory that holds ``fairsched``."""


def with_package(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with this package first on its PYTHONPATH."""
    inherited = env.get("PYTHONPATH")
    return {**env, "PYTHONPATH": os.pathsep.join([PACKAGE_ROOT, inherited] if inherited else [PACKAGE_ROOT])}
