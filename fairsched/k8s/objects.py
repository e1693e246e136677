# SPDX-License-Identifier: Apache-2.0
"""What several rooms ask of an object of the API server (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_over(pod: Mapping[str, Any]) -> bool:
    """It has ended, and holds nothing any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
