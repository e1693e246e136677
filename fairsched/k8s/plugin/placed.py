# SPDX-License-Identifier: Apache-2.0
"""Which pod has how many shares of which GPU: asked of the kubelet, written for the agent.

The kubelet alone knows (its checkpoint outlives it). Where it does not answer, what it said last stands. The file is
JSON, as fairsched/companion/pods/shares.py reads it:

    {"version": 1, "pods": {"ml/llama-0": {"GPU-...": 25}}}
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from fairsched.base.files import replace_file
from fairsched.k8s.grpc_io import NotAnswered, ask
from fairsched.k8s.plugin.shares import BadShare, parse
from fairsched.k8s.proto.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse

CALL = "/v1.PodResourcesLister/List"
VERSION = 1
ANSWERED_S = 5.0
MOST_PODS = 4096
"""Of a node; the kubelet has 110 by default."""

logger = logging.getLogger(__name__)
Placed = Mapping[str, Mapping[str, int]]
"""Shares by NAMESPACE/POD and UUID."""


def placed_in(answer: ListPodResourcesResponse, resource: str) -> Placed:
    """What is given out of a resource. What is no share of ours is left out."""
    found: dict[str, dict[str, int]] = {}
    for pod in answer.pod_resources[:MOST_PODS]:
        ids = [
            one
            for container in pod.containers
            for devices in container.devices
            if devices.resource_name == resource
            for one in devices.device_ids
        ]
        shares: dict[str, int] = {}
        # The devices of a container are told by node of memory: an init container's may be a later one's as well.
        for one in dict.fromkeys(ids):
            try:
                uuid, _ = parse(one)
            except BadShare:
                continue
            shares[uuid] = shares.get(uuid, 0) + 1
        if shares:
            found[f"{pod.namespace}/{pod.name}"] = shares
    return found


class PlacedFile:
    """Keeps the file. Not for several threads."""

    def __init__(self, socket: Path, file: Path, resource: str) -> None:
        self._socket, self._file, self._resource = socket, file, resource
        self._written: str | None = None
        self._said: str | None = None

    def step(self) -> None:
        """Ask, and write if it is something else; takes no longer than the call. Failures are logged once."""
        try:
            answer = ask(self._socket, CALL, ListPodResourcesRequest(), ListPodResourcesResponse, ANSWERED_S)
            document = {"version": VERSION, "pods": placed_in(answer, self._resource)}
            text = json.dumps(document, sort_keys=True)
            if text != self._written or not self._file.exists():
                replace_file(self._file, text.encode(), is_durable=False)
                self._written = text
        except (NotAnswered, OSError) as error:
            self._say(str(error))
            return
        self._say(None)

    def _say(self, why: str | None) -> None:
        if why != self._said and why is not None:
            logger.warning("placed=unknown reason=%r", why)
        self._said = why
