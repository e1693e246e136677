# SPDX-License-Identifier: Apache-2.0
"""An API server, and what talks to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.k8s import grants
from fairsched.k8s.client import KubeClient, Times
from fairsched.k8s.kubeconfig import from_file
from tests.unit.companion.escalate.api_server import ApiServer

QUICK = Times(connect_s=2.0, call_s=2.0)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with: apt-get install openssl")
    with ApiServer(tmp_path) as server:
        yield server


@pytest.fixture
def client(api: ApiServer) -> KubeClient:
    return KubeClient(from_file(api.kubeconfig()), QUICK, grant=grants.ESCALATION)
