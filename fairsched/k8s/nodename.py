# SPDX-License-Identifier: Apache-2.0
"""What this node is called in the cluster."""

from __future__ import annotations

import os
import socket


def node_name(configured: str | None) -> str:
    """As configured, as the pod was told, else the host's."""
    return configured or os.environ.get("NODE_NAME") or socket.gethostname().lower()
