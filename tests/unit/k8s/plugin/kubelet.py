# SPDX-License-Identifier: Apache-2.0
"""A kubelet as a device plugin sees it, and a driver as NVML tells of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from fairsched.gpu.nvml import Gpu
from fairsched.k8s.grpc_io import Call, Context, ask, handler, serve
from fairsched.k8s.plugin.link import KUBELET
from fairsched.k8s.plugin.service import SERVICE
from fairsched.k8s.plugin.shares import RESOURCE, Offer, name_of
from fairsched.k8s.proto import podresources_pb2 as pods
from fairsched.k8s.proto.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateRequest,
    ContainerAllocateResponse,
    ContainerPreferredAllocationRequest,
    Empty,
    ListAndWatchResponse,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    RegisterRequest,
)

WITHIN_S = 10.0
A, B, C = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"


def offer(uuid: str, trouble: str | None = None, minor: int | None = 0, **more: Any) -> Offer:
    return Offer(uuid, minor, trouble=trouble, **more)


def shares(uuid: str, *numbers: int) -> list[str]:
    return [name_of(uuid, number) for number in numbers]


def some(uuid: str, count: int, first: int = 0) -> list[str]:
    return shares(uuid, *range(first, first + count))


class FakeKubelet:
    """Takes registrations, reads the list of each plugin, and tells who has what."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registered: list[RegisterRequest] = []
        self.refuses = False
        self.does_watch = True
        self.seen: dict[str, str] = {}
        """Health by share, as the plugin said last."""
        self.pods: dict[str, list[str]] = {}
        """Shares by NAMESPACE/POD."""
        self.resources = directory / "resources.sock"
        self._servers: list[grpc.Server] = []
        self._channels: list[grpc.Channel] = []
        self.start()

    def start(self) -> None:
        """As one that starts does it: nothing is left in its directory."""
        for path in self.directory.iterdir():
            path.unlink()
        self.seen = {}
        register = {"Register": Call(self._register, RegisterRequest, Empty)}
        tell = {"List": Call(self._list, pods.ListPodResourcesRequest, pods.ListPodResourcesResponse)}
        self._servers = [
            serve(self.directory / KUBELET, handler("v1beta1.Registration", register)),
            serve(self.resources, handler("v1.PodResourcesLister", tell)),
        ]

    def stop(self) -> None:
        for channel in self._channels:
            channel.close()
        for server in self._servers:
            server.stop(None).wait()
        self._channels, self._servers = [], []

    def _register(self, request: RegisterRequest, context: Context) -> Empty:
        if self.refuses:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not now")
        self.registered.append(request)
        if self.does_watch:
            threading.Thread(
                target=self._watch, args=(request.endpoint, len(self.registered)), daemon=True
            ).start()
        return Empty()

    def _watch(self, endpoint: str, mine: int) -> None:
        channel = grpc.insecure_channel(f"unix://{self.directory / endpoint}")
        self._channels.append(channel)
        call = channel.unary_stream(
            f"/{SERVICE}/ListAndWatch",
            request_serializer=Empty.SerializeToString,
            response_deserializer=ListAndWatchResponse.FromString,
        )
        try:
            for answer in call(Empty(), wait_for_ready=True, timeout=60):
                if mine == len(self.registered):
                    self.seen = {device.ID: device.health for device in answer.devices}
        except (grpc.RpcError, ValueError):
            pass  # it ends so, or so
        if mine == len(self.registered):
            self.seen = dict.fromkeys(self.seen, "Unhealthy")

    def _list(self, _request: Any, _context: Context) -> pods.ListPodResourcesResponse:
        answer = pods.ListPodResourcesResponse()
        for full, ids in self.pods.items():
            namespace, _, name = full.partition("/")
            devices = [pods.ContainerDevices(resource_name=RESOURCE, device_ids=ids)]
            one = pods.ContainerResources(name="main", devices=devices)
            answer.pod_resources.append(pods.PodResources(name=name, namespace=namespace, containers=[one]))
        return answer

    # ---- what it asks ----

    @property
    def plugin(self) -> Path:
        return self.directory / self.registered[-1].endpoint

    def healthy(self) -> dict[str, int]:
        """Healthy shares by GPU."""
        found: dict[str, int] = {}
        for name, health in self.seen.items():
            if health == "Healthy":
                uuid = name.partition("::")[0]
                found[uuid] = found.get(uuid, 0) + 1
        return found

    def allocate(self, ids: Sequence[str]) -> ContainerAllocateResponse:
        request = AllocateRequest(container_requests=[ContainerAllocateRequest(devices_ids=ids)])
        answer = ask(self.plugin, f"/{SERVICE}/Allocate", request, AllocateResponse, WITHIN_S)
        (found,) = answer.container_responses
        return found

    def prefer(self, available: Sequence[str], size: int, must: Sequence[str] = ()) -> list[str]:
        one = ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = PreferredAllocationRequest(container_requests=[one])
        answer = ask(
            self.plugin, f"/{SERVICE}/GetPreferredAllocation", request, PreferredAllocationResponse, WITHIN_S
        )
        return list(answer.container_responses[0].deviceIDs)


class FakeNvml:
    """As much of gpu.nvml.Nvml as the inventory asks; what it says is laid ready by a test."""

    def __init__(self, *uuids: str, error: str | None = None) -> None:
        self.gpus = tuple(Gpu(uuid, index) for index, uuid in enumerate(uuids))
        self.error = error
        self.is_closed = False
        self.refreshes = 0

    def refresh(self) -> bool:
        self.refreshes += 1
        return False

    def handle(self, slot: int) -> object:
        return object()

    def close(self) -> None:
        self.is_closed = True


def each(values: Sequence[Any]) -> Iterator[Any]:
    """One after the other, and the last again and again."""
    yield from values
    while True:
        yield values[-1]
