# SPDX-License-Identifier: Apache-2.0
"""Asks the agents of all nodes through the API server's proxy of pods, all at once.

Problem. Who has no shell on a node wants to see its shares. A hundred nodes may have a dead or slow one among them.

Approach. Agents are found by their label and by what a pod of a tenant may not be, and asked over ``pods/proxy`` at the
port that their pod calls ``metrics``: the right is Kubernetes' own, to ``get`` that. Each has a deadline of its own and
a thread of its own.

Errors: client.Refused and client.Unreachable where pods cannot be listed; of one agent they are in its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fairsched.errors import FairschedError
from fairsched.k8s.client import KubeClient, Refused
from fairsched.k8s.objects import is_agent, name_of, space_of

LABEL = "app.kubernetes.io/name=fairsched"
USUAL_NAMESPACE = "fairsched"
MOST_AT_ONCE = 128
"""Threads; each holds a connection to the API server."""


@dataclass(frozen=True)
class Agent:
    """One agent's pod."""

    node: str
    namespace: str
    pod: str
    port: int | None
    """None: it serves nothing (metrics.listen)."""
    scheme: str = "http"


@dataclass(frozen=True)
class Answer:
    """What one agent said; ``error`` None: it did."""

    agent: Agent
    document: Mapping[str, Any] | None = None
    error: str | None = None
    is_forbidden: bool = False


def find(client: KubeClient, namespace: str | None = None, *, scheme: str = "http") -> list[Agent]:
    """Agents by node: in `namespace`, or in all, or, where that is forbidden, in the usual one. Raises Refused."""
    query = {"labelSelector": LABEL}
    if namespace is not None:
        items, _ = client.listed(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods", query)
    else:
        try:
            items, _ = client.listed("/api/v1/pods", query)
        except Refused as error:
            if not error.is_forbidden:
                raise
            items, _ = client.listed(f"/api/v1/namespaces/{USUAL_NAMESPACE}/pods", query)
    running = [pod for pod in items if (pod.get("status") or {}).get("phase") == "Running"]
    found = [_agent(pod, scheme) for pod in running if is_agent(pod)]
    return sorted(found, key=lambda one: (one.node, one.pod))


def _agent(pod: Mapping[str, Any], scheme: str) -> Agent:
    spec = pod.get("spec") or {}
    ports = [
        port.get("containerPort")
        for container in spec.get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("name") == "metrics"
    ]
    port = next((one for one in ports if isinstance(one, int)), None)
    return Agent(str(spec.get("nodeName") or "?"), space_of(pod), name_of(pod), port, scheme)


def ask_all(client: KubeClient, agents: Sequence[Agent], path: str) -> list[Answer]:
    """Every agent the same, in the order of ``agents``; it takes as long as the slowest may (the client's Times)."""
    if not agents:
        return []
    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(agents)), "agent") as pool:
        return list(pool.map(lambda agent: _ask(client, agent, path), agents))


def _ask(client: KubeClient, agent: Agent, path: str) -> Answer:
    if agent.port is None:
        return Answer(agent, error="it serves nothing: metrics.listen is not set")
    where = quote(f"{agent.scheme}:{agent.pod}:{agent.port}", safe=":")
    try:
        return Answer(
            agent,
            client.get(f"/api/v1/namespaces/{quote(agent.namespace, safe='')}/pods/{where}/proxy{path}"),
        )
    except Refused as error:
        return Answer(agent, error=_why(error), is_forbidden=error.is_forbidden and error.is_servers)
    except FairschedError as error:
        return Answer(agent, error=str(error).partition("proxy")[2].partition(": ")[2] or str(error))


def _why(error: Refused) -> str:
    if error.is_servers:
        return f"{error.reason or error.status}: {error.message}"[:300]
    if error.status == 401:
        return "its exporter wants a password (metrics.web_config), which the API server does not hand on"
    if error.is_absent:
        return f"it knows nothing of that: {error.message}"[:300]
    return f"it answers {error.status}: {error.message}"[:300]
