# SPDX-License-Identifier: Apache-2.0
"""A device plugin that gives out replicas of GPUs as NVIDIA's does with time-slicing: a stand-in, and the real one.

What the stand-in says is from NVIDIA's documents and sources (k8s-device-plugin, `sharing.timeSlicing`): a device for
each replica, `UUID::0`, `UUID::1` ..., all of the resource `nvidia.com/gpu`; a container gets the environment variable
NVIDIA_VISIBLE_DEVICES with the UUID, without the number of the replica, once. No CDI device, no weight.
The real one is a program of yours, which is not built here: FAIRSCHED_NVIDIA_DEVICE_PLUGIN=FILE names it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from fairsched.k8s.grpc_io import Call, Context, ask, handler, serve
from fairsched.k8s.plugin.link import ANSWERED_S, CALL, KUBELET, VERSION
from fairsched.k8s.plugin.service import SERVICE, VISIBLE_ENV
from fairsched.k8s.proto.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateResponse,
    Device,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    RegisterRequest,
)
from fairsched.simgpu.node import SimNode
from tests.k8s.cluster import Cluster

RESOURCE = "nvidia.com/gpu"
REAL = os.environ.get("FAIRSCHED_NVIDIA_DEVICE_PLUGIN", "")
SOCKET = "nvidia-gpu.sock"


class StandIn:
    """The calls of the kubelet, of API v1beta1."""

    def __init__(self, uuids: Sequence[str], replicas: int) -> None:
        self.ids = [f"{uuid}::{number}" for uuid in uuids for number in range(replicas)]
        self._over = threading.Event()

    def serve(self, directory: Path) -> contextlib.ExitStack:
        """In the kubelet's directory, and registered there."""
        calls = {
            "GetDevicePluginOptions": Call(lambda *_: DevicePluginOptions(), Empty, DevicePluginOptions),
            "ListAndWatch": Call(self._watch, Empty, ListAndWatchResponse, is_stream=True),
            "Allocate": Call(self._allocate, AllocateRequest, AllocateResponse),
        }
        undo = contextlib.ExitStack()
        server = serve(directory / SOCKET, handler(SERVICE, calls))
        undo.callback(lambda: server.stop(None).wait())
        undo.callback(self._over.set)
        request = RegisterRequest(version=VERSION, endpoint=SOCKET, resource_name=RESOURCE)
        ask(directory / KUBELET, CALL, request, Empty, ANSWERED_S)
        return undo

    def _watch(self, _request: Empty, context: Context) -> Iterator[ListAndWatchResponse]:
        yield ListAndWatchResponse(devices=[Device(ID=one, health="Healthy") for one in self.ids])
        context.add_callback(self._over.set)
        self._over.wait()

    def _allocate(self, request: AllocateRequest, _context: Context) -> AllocateResponse:
        answer = AllocateResponse()
        for one in request.container_requests:
            uuids = dict.fromkeys(name.partition("::")[0] for name in one.devices_ids)
            envs = {VISIBLE_ENV: ",".join(uuids)}
            answer.container_responses.append(ContainerAllocateResponse(envs=envs))
        return answer


@contextlib.contextmanager
def stand_in(cluster: Cluster, gpu: SimNode, replicas: int) -> Iterator[None]:
    """It runs beside the test: the kubelet's directory is the cluster's."""
    with StandIn(gpu.host.uuids(), replicas).serve(cluster.directory / "kubelet/device-plugins"):
        yield


def settings(replicas: int) -> dict[str, Any]:
    """NVIDIA's configuration file, for its version v1."""
    return {
        "version": "v1",
        "flags": {
            "migStrategy": "none",
            "failOnInitError": True,
            "plugin": {
                "deviceListStrategy": ["envvar"],
                "deviceIDStrategy": "uuid",
                "passDeviceSpecs": False,
            },
        },
        "sharing": {"timeSlicing": {"resources": [{"name": RESOURCE, "replicas": replicas}]}},
    }


@contextlib.contextmanager
def real(cluster: Cluster, gpu: SimNode, replicas: int) -> Iterator[None]:
    """On the node, on the simulated NVML."""
    file = cluster.directory / "nvidia-device-plugin.yaml"
    file.write_text(yaml.safe_dump(settings(replicas)))
    env = {**gpu.host.env(), "DP_DISABLE_HEALTHCHECKS": "all"}
    cluster.run("nvidia-device-plugin", f"--config-file={file}", env=env, path=Path(REAL).resolve())
    try:
        yield
    finally:
        cluster.stop("nvidia-device-plugin")
