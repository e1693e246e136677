# SPDX-License-Identifier: Apache-2.0
"""The controller of teams with 100 nodes of 30 pods and 100 teams: what it takes, and how soon it has converged.

    FAIRSCHED_FULL=1 sudo make test-k8s ARGS="tests/k8s/test_teams_scale.py -s"

Real: the API server, Kueue's definitions and webhooks. Nodes and pods are kwok's, Prometheus a stand-in that answers
for each of the 3000 pods.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import psutil
import pytest

from fairsched.base.package import with_package
from fairsched.k8s.teams.queues import KEY, queues_of
from fairsched.simgpu.daemon_process import COMMAND
from tests.conftest import is_full
from tests.k8s import network
from tests.k8s.cluster import Cluster
from tests.k8s.fake_nodes import fake_node, fake_nodes
from tests.k8s.settings import ADDRESS
from tests.support import let_run, wait_until

pytestmark = pytest.mark.skipif(not is_full(), reason="extra: takes minutes: FAIRSCHED_FULL=1")

NODES, PODS, TEAMS = 100, 30, 100
PORT = 9091
CONVERGED_S, MAX_CORES, MAX_BYTES = 30.0, 1.0, 300e6
"""The bars."""
WATCHED_S = 30.0
PATIENCE_S = 240.0


class Answers:
    """Of the stand-in: by team, GPU-seconds of the window."""

    def __init__(self) -> None:
        self.seconds = [100.0] * TEAMS

    def vector(self, query: str) -> list[dict[str, Any]]:
        now = time.time()
        if "timestamp" in query:
            return [{"metric": {}, "value": [now, str(now)]}]
        per = NODES * PODS // TEAMS
        return [
            {"metric": {"tenant": f"team-{team}/pod-{pod}"}, "value": [now, str(self.seconds[team] / per)]}
            for team in range(TEAMS)
            for pod in range(per)
        ]


@contextlib.contextmanager
def stand_in(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["query"][0]
            data = {"resultType": "vector", "result": answers.vector(query)}
            body = json.dumps({"status": "success", "data": data}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((ADDRESS, PORT), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{ADDRESS}:{PORT}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each is made, and what it is."""
    for team in range(TEAMS):
        name = f"team-{team}"
        yield "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"scale": "teams"}}}
        yield "/apis/kueue.x-k8s.io/v1beta2/clusterqueues", {
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name},
            "spec": {"cohortName": "all", "namespaceSelector": {}, "fairSharing": {"weight": str(1 + team % 4)}},
        }  # fmt: skip
        yield f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{name}/localqueues", {
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": "gpus", "namespace": name}, "spec": {"clusterQueue": name},
        }  # fmt: skip
        for number in range(NODES * PODS // TEAMS):
            node = f"scale-{(team * NODES * PODS // TEAMS + number) // PODS}"
            yield f"/api/v1/namespaces/{name}/pods", {
                "metadata": {"name": f"pod-{number}"},
                "spec": {
                    "nodeName": node, "automountServiceAccountToken": False,
                    "containers": [{"name": "main", "image": "none"}],
                },
            }  # fmt: skip


def populate(cluster: Cluster) -> None:
    made = list(documents())
    client = network.admin(cluster)

    def create(kinds: Callable[[str], bool]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda one: client.create(*one), [one for one in made if kinds(one[0])]))

    create(lambda path: path.endswith("/namespaces"))
    wait_until(
        lambda: (
            cluster.has("serviceaccount", "default", "-n", f"team-{TEAMS - 1}")
            and len(client.listed("/api/v1/serviceaccounts", {})[0]) > TEAMS
        ),
        PATIENCE_S,
        "each namespace has its account",
    )
    create(lambda path: path.endswith("/clusterqueues"))
    create(lambda path: path.endswith("/localqueues"))
    create(lambda path: path.endswith("/pods"))


def weights(cluster: Cluster) -> list[float | None]:
    """As they are written, by team."""
    found = {
        one["metadata"]["name"]: queues_of(one["metadata"].get("annotations", {}).get(KEY, "?"))
        for one in network.admin(cluster).listed("/api/v1/namespaces", {"labelSelector": "scale=teams"})[0]
    }
    queues = [found[f"team-{team}"] for team in range(TEAMS)]
    return [one["gpus"].weight if one else None for one in queues]


def test_a_hundred_nodes_of_thirty_pods(cluster: Cluster, with_kueue: None) -> None:
    nominal = [float(1 + team % 4) for team in range(TEAMS)]
    answers = Answers()
    # To begin with each has got what it is entitled to.
    answers.seconds = [60.0 * one for one in nominal]
    nodes = [fake_node(f"scale-{number}") for number in range(NODES)]
    with fake_nodes(cluster, nodes), network.inside(cluster), stand_in(answers) as url:
        populate(cluster)
        command = [*COMMAND, "k8s", "teams", f"--kubeconfig={cluster.kubeconfig}", f"--prometheus={url}"]
        cluster.kubectl("create", "namespace", "fairsched")
        started = time.monotonic()
        with open(cluster.directory / "teams.log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=with_package(os.environ))
        try:
            wait_until(lambda: weights(cluster) == nominal, PATIENCE_S, "the nominal weights are written")
            first_s = time.monotonic() - started
            # Every fourth has got next to nothing.
            answers.seconds = [1.0 if team % 4 == 0 else 60.0 * one for team, one in enumerate(nominal)]
            flipped = time.monotonic()
            wait_until(
                lambda: all((one or 0) > 1.9 for one in weights(cluster)[::4]),
                PATIENCE_S,
                "they are corrected",
            )
            converged_s = time.monotonic() - flipped
            watched = psutil.Process(process.pid)
            before = sum(watched.cpu_times()[:2])
            let_run(WATCHED_S)
            cores = (sum(watched.cpu_times()[:2]) - before) / WATCHED_S
            memory = watched.memory_info().rss
        finally:
            process.terminate()
            status = process.wait(30)
            for team in range(TEAMS):
                network.admin(cluster).delete(f"/api/v1/namespaces/team-{team}")
            cluster.kubectl("delete", "namespace", "fairsched", "--wait=false")
        print(
            f"first weights {first_s:.1f} s, converged {converged_s:.1f} s, {cores:.3f} cores, {memory / 1e6:.0f} MB"
        )
        assert status == 0
        assert converged_s <= CONVERGED_S and first_s <= CONVERGED_S
        assert cores <= MAX_CORES and memory <= MAX_BYTES
        told = (cluster.directory / "teams.log").read_text()
        assert "teams=failed" not in told
