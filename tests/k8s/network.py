# SPDX-License-Identifier: Apache-2.0
"""A test's way to the API server, which listens in the network of the node: our own client, as whom one likes."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

from fairsched.k8s import kubeconfig
from fairsched.k8s.client import KubeClient, Times
from tests.k8s.api import in_network_of
from tests.k8s.cluster import Cluster
from tests.k8s.places import SLOWER


def inside(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    """This thread, and those that it starts, are in the node's network; processes that it starts are as well."""
    return in_network_of(cluster.processes["namespace"].pid)


def admin(cluster: Cluster) -> KubeClient:
    """As the administrator."""
    return KubeClient(kubeconfig.access(cluster.kubeconfig), Times(5.0 * SLOWER, 15.0 * SLOWER))


def as_account(cluster: Cluster, namespace: str, name: str) -> KubeClient:
    """As a service account, with a token that the API server has made."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    answer = json.loads(cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body)))
    # Without the administrator's certificate, which would go before the token.
    document = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    for user in document["users"]:
        user["user"] = {}
    file = cluster.directory / f"{namespace}-{name}.conf"
    file.write_text(json.dumps(document))
    return KubeClient(replace(kubeconfig.access(file), token=answer["status"]["token"]))
