# SPDX-License-Identifier: Apache-2.0
"""Tells where this package lies, gives a child an environment in which it imports the same one, and says how to install
what it can do without."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The directory that holds ``fairsched``."""


def with_package(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with this package first on its PYTHONPATH."""
    inherited = env.get("PYTHONPATH")
    return {**env, "PYTHONPATH": os.pathsep.join([PACKAGE_ROOT, inherited] if inherited else [PACKAGE_ROOT])}


def how_to_install(name: str) -> str:
    """For the Python that runs this: an installed service has one of its own, and a distribution's takes nothing."""
    return f"{'' if os.access(sys.prefix, os.W_OK) else 'sudo '}{sys.executable} -m pip install {name}"
