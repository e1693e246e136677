# SPDX-License-Identifier: Apache-2.0
"""An API server, and what talks to it."""

from __future__ import annotations

from tests.unit.companion.escalate.conftest import api as api
from tests.unit.companion.escalate.conftest import client as client
