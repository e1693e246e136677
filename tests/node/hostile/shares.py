# SPDX-License-Identifier: Apache-2.0
"""What the neighbours of who plays get, as the engine knows it.

Tenants are measured in their first seconds, and what is owed from then is repaid: over a few seconds a share is some
points off with nobody who plays. So a short play cannot ask for the two points that a neighbour may lose at most.
FAIRSCHED_FULL=1 has the plays go on for longer, and asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tests.node.daemon.site import Site
from tests.support import let_run

IS_FULL = os.environ.get("FAIRSCHED_FULL", "0") not in ("", "0")
_SETTLED_S, _WATCHED_S = 15.0, 30.0
LONGER_S = _SETTLED_S + _WATCHED_S if IS_FULL else 0.0
"""So much longer a play must go on than its test says otherwise."""
MOST_POINTS = 0.02


def expect_shares(site: Site, due: Mapping[str, float], seconds: float, error: float) -> None:
    """Of what they got together these tenants get what they are due: in ``seconds`` within ``error``, or see above."""
    if IS_FULL:
        let_run(_SETTLED_S)
        seconds, error = _WATCHED_S, MOST_POINTS
    shares = site.shares(list(due), seconds)
    print("shares:", {name: round(share, 4) for name, share in shares.items()})
    assert all(abs(shares[name] - due[name]) < error for name in due), (shares, site.status()["warnings"])
