# SPDX-License-Identifier: Apache-2.0
"""A test's way to the API server, which listens in the network of the node: our own client, as whom one likes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairsched.k8s import kubeconfig
from fairsched.k8s.client import KubeClient, Times
from tests.k8s.places import SLOWER

CLONE_NEWNET = 0x40000000

if TYPE_CHECKING:
    from tests.k8s.cluster import Cluster


@contextlib.contextmanager
def inside(cluster: Cluster) -> Iterator[None]:
    """This thread, and those that it starts, are in the node's network; processes that it starts are as well."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str | Path) -> None:
        space = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(space, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {path}")
        finally:
            os.close(space)

    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(f"/proc/{cluster.processes['namespace'].pid}/ns/net")
        try:
            yield
        finally:
            enter(f"/proc/self/fd/{here}")
    finally:
        os.close(here)


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
