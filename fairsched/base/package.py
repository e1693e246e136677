# SPDX-License-Identifier: Apache-2.0
"""Tells where this package lies: for the PYTHONPATH of a child, which is to import the same one."""

from __future__ import annotations

import os

PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The directory that holds ``fairsched``."""
