# SPDX-License-Identifier: Apache-2.0
"""What a test does to the cluster's etcd, by its HTTP."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.k8s.cluster import Cluster
from tests.k8s.network import inside

URL = "http://127.0.0.1:2379/v3/kv"
KEY, VALUE = "Zm9yZ2V0", "MQ=="
"""In base64, as it wants them."""


def forget(cluster: Cluster) -> None:
    """It gets a revision that no API server has made, and keeps none that is older: no watch can go on where it was."""

    def ask(what: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{URL}/{what}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    with inside(cluster):
        put = ask("put", {"key": KEY, "value": VALUE})
        ask("compaction", {"revision": put["header"]["revision"], "physical": True})
