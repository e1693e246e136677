# SPDX-License-Identifier: Apache-2.0
"""Makes, or removes, a crowd of fake nodes and pods: ``python -m tests.k8s.crowd KUBECONFIG make|churn|remove``.

Nodes are kwok's, which plays their kubelets. Pods are bound to nodes as they are made: a scheduler is not what is
measured. Connections are kept, a few at a time: three thousand handshakes would be.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any

from fairsched.k8s.kubeconfig import from_file
from tests.k8s.places import IMAGE

NODES, PODS_EACH, SPACES = 100, 30, 30
FAKE = "kwok.x-k8s.io/node"
THREADS = 6
_own = local()


class Crowd:
    """``with Crowd(kubeconfig)``."""

    def __init__(self, kubeconfig: Path) -> None:
        self._access = from_file(kubeconfig)

    def ask(self, method: str, path: str, body: Any = None) -> None:
        if not hasattr(_own, "connection"):
            server = self._access.server
            assert server.hostname is not None
            _own.connection = http.client.HTTPSConnection(
                server.hostname, server.port, context=self._access.tls, timeout=60
            )
        _own.connection.request(
            method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"}
        )
        response = _own.connection.getresponse()
        text = response.read()
        if response.status >= 300 and response.status not in (404, 409):
            raise RuntimeError(f"{method} {path}: {response.status} {text[:300]!r}")

    def all(self, calls: Iterable[tuple[Any, ...]]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda call: self.ask(*call), calls))

    def make(self) -> None:
        self.all(("POST", "/api/v1/namespaces", space(number)) for number in range(SPACES))
        accounts = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        self.all(
            ("POST", f"/api/v1/namespaces/team-{number:02}/serviceaccounts", accounts)
            for number in range(SPACES)
        )
        self.all(("POST", "/api/v1/nodes", node(number)) for number in range(NODES))
        self.all(pods(range(NODES * PODS_EACH)))

    def churn(self) -> None:
        """A tenth of the pods go, and come again."""
        some = range(0, NODES * PODS_EACH, 10)
        self.all(
            ("DELETE", f"/api/v1/namespaces/team-{n % SPACES:02}/pods/p-{n:04}?gracePeriodSeconds=0")
            for n in some
        )
        self.all(pods(some))

    def remove(self) -> None:
        self.all(
            ("DELETE", f"/api/v1/namespaces/team-{number:02}/pods?gracePeriodSeconds=0")
            for number in range(SPACES)
        )
        self.all(("DELETE", f"/api/v1/nodes/fake-{number:03}") for number in range(NODES))
        self.all(("DELETE", f"/api/v1/namespaces/team-{number:02}") for number in range(SPACES))


def space(number: int) -> dict[str, Any]:
    labels = {"kind": "team", "tier": "gold" if number % 3 == 0 else "silver"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": f"team-{number:02}", "labels": labels},
    }


def node(number: int) -> dict[str, Any]:
    some = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"fake-{number:03}", "annotations": {FAKE: "fake"}},
        "spec": {"taints": [{"key": FAKE, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": some, "allocatable": some},
    }


def pods(numbers: Iterable[int]) -> Iterable[tuple[str, str, Any]]:
    """As many labels and variables as pods have, so that they are as long."""
    for number in numbers:
        name, namespace = f"p-{number:04}", f"team-{number % SPACES:02}"
        env = [{"name": f"VARIABLE_{i}", "value": "a value of some length " * 3} for i in range(20)]
        container = {
            "name": "main",
            "image": IMAGE,
            "env": env,
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }
        labels = {
            "app": f"app-{number % 50}",
            "tier": "serving" if number % 4 else "batch",
            "hash": f"{number:x}",
        }
        yield (
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {
                    "nodeName": f"fake-{number // PODS_EACH:03}",
                    "containers": [container],
                    "automountServiceAccountToken": False,
                    "tolerations": [{"operator": "Exists"}],
                },
            },
        )


if __name__ == "__main__":
    crowd = Crowd(Path(sys.argv[1]))
    {"make": crowd.make, "churn": crowd.churn, "remove": crowd.remove}[sys.argv[2]]()
