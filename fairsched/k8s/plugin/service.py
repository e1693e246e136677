# SPDX-License-Identifier: Apache-2.0
"""Answers the kubelet: what there is, which of it to take, and how it gets into a container.

Every answer is made of what the loop has published last: no call waits for a driver. What makes no sense is refused
with its reason, which the kubelet writes on the pod. Of streams only the newest goes on: a kubelet that was started
anew opens another, and the old one would keep a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import grpc

from fairsched.k8s.grpc_io import Call, Context, Handler, handler
from fairsched.k8s.plugin.cdi import qualified
from fairsched.k8s.plugin.choose import How, choose
from fairsched.k8s.plugin.shares import MOST_DEVICES, BadShare, Offer, count, names, parse
from fairsched.k8s.proto.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    CDIDevice,
    ContainerAllocateResponse,
    ContainerPreferredAllocationResponse,
    Device,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    NUMANode,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    TopologyInfo,
)

SERVICE = "v1beta1.DevicePlugin"
WORKERS = 8
"""Calls at a time. The kubelet makes one stream, and one call for each container that starts."""
MOST_CONTAINERS = 64
"""In one request: the kubelet sends one."""
SHARES_ENV = "FAIRSCHED_GPU_SHARES"
"""In the container: UUID=SHARES, with commas between."""
VISIBLE_ENV = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = "void"
"""NVIDIA's runtime then adds nothing by itself, whatever the image says: images of CUDA say all."""
_LOOK_S = 5.0
"""So often a stream looks whether somebody reads it."""


@dataclass(frozen=True)
class Ways:
    """How a GPU gets into a container."""

    is_cdi: bool = True
    is_env: bool = False
    is_split_allowed: bool = True
    """Shares of several GPUs for a container that asks for no more than one GPU has."""


class ShareService:
    """The calls of a device plugin. Safe to use from several threads."""

    def __init__(self, shares_per_gpu: int, how: How = "pack", ways: Ways | None = None) -> None:
        self._shares_per_gpu, self._how, self._ways = shares_per_gpu, how, ways or Ways()
        self._changed = threading.Condition()
        self._offers: Mapping[str, Offer] = {}
        self._version = 0
        self._stream = 0
        self._readers = 0
        self._is_over = False
        self.allocated = threading.Event()
        """Something was given out."""

    # ---- the loop's side ----

    def publish(self, offers: Sequence[Offer]) -> bool:
        """What there is now, in place of what there was; whether that is news."""
        found = {offer.uuid: offer for offer in offers}
        with self._changed:
            if found == self._offers and self._version:
                return False
            self._offers = found
            self._version += 1
            self._changed.notify_all()
        return True

    def close(self) -> None:
        """End the streams."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    @property
    def is_watched(self) -> bool:
        """Whether a kubelet reads what is published."""
        return self._readers > 0

    def handler(self) -> Handler:
        calls = {
            "GetDevicePluginOptions": Call(self.options, Empty, DevicePluginOptions),
            "ListAndWatch": Call(self.watch, Empty, ListAndWatchResponse, is_stream=True),
            "GetPreferredAllocation": Call(
                self.prefer, PreferredAllocationRequest, PreferredAllocationResponse
            ),
            "Allocate": Call(self.allocate, AllocateRequest, AllocateResponse),
        }
        return handler(SERVICE, calls)

    # ---- the kubelet's side ----

    def options(self, _request: Empty, _context: Context) -> DevicePluginOptions:
        return DevicePluginOptions(get_preferred_allocation_available=True)

    def watch(self, _request: Empty, context: Context) -> Iterator[ListAndWatchResponse]:
        """All shares, and again whenever something is another."""
        with self._changed:
            self._stream += 1
            mine, told = self._stream, 0
            self._readers += 1
            self._changed.notify_all()
        context.add_callback(self._wake)
        try:
            while True:
                with self._changed:
                    while self._version == told and self._goes_on(mine, context):
                        self._changed.wait(_LOOK_S)
                    if not self._goes_on(mine, context):
                        return
                    told, offers = self._version, list(self._offers.values())
                yield self._listing(offers)
        finally:
            with self._changed:
                self._readers -= 1

    def _goes_on(self, mine: int, context: Context) -> bool:
        return mine == self._stream and not self._is_over and context.is_active()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _listing(self, offers: Sequence[Offer]) -> ListAndWatchResponse:
        answer = ListAndWatchResponse()
        for name, offer in names(offers, self._shares_per_gpu).items():
            near = None if offer.numa is None else TopologyInfo(nodes=[NUMANode(ID=offer.numa)])
            answer.devices.append(
                Device(ID=name, health="Healthy" if offer.is_well else "Unhealthy", topology=near)
            )
        return answer

    def prefer(self, request: PreferredAllocationRequest, context: Context) -> PreferredAllocationResponse:
        """Raises (as gRPC does) INVALID_ARGUMENT: the kubelet then takes any."""
        answer = PreferredAllocationResponse()
        try:
            for one in request.container_requests[:MOST_CONTAINERS]:
                size = max(0, min(one.allocation_size, MOST_DEVICES))
                must = list(one.must_include_deviceIDs)
                ids = choose(one.available_deviceIDs, must, size, self._how)
                answer.container_responses.append(ContainerPreferredAllocationResponse(deviceIDs=ids))
        except BadShare as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return answer

    def allocate(self, request: AllocateRequest, context: Context) -> AllocateResponse:
        """Raises, as gRPC does: INVALID_ARGUMENT what makes no sense, FAILED_PRECONDITION a GPU that is unwell."""
        answer = AllocateResponse()
        if len(request.container_requests) > MOST_CONTAINERS:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {MOST_CONTAINERS} containers")
        try:
            for one in request.container_requests:
                answer.container_responses.append(self._allocate(list(one.devices_ids), context))
        except BadShare as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self.allocated.set()
        return answer

    def _allocate(self, ids: Sequence[str], context: Context) -> ContainerAllocateResponse:
        if not ids:
            raise BadShare("a container that is given no share needs none")
        wanted = count(ids)
        for one in ids:
            uuid, number = parse(one)
            if uuid not in self._offers or number >= self._shares_per_gpu:
                raise BadShare(f"{one!r}: there is no such share")
        unwell = {uuid: why for uuid in wanted if (why := self._offers[uuid].trouble) is not None}
        for uuid, why in unwell.items():
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{uuid} is unwell: {why}")
        if len(wanted) > 1 and len(ids) <= self._shares_per_gpu and not self._ways.is_split_allowed:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"no GPU has {len(ids)} shares left: they would be of {len(wanted)} GPUs, which the plugin's"
                " configuration forbids",
            )
        envs = {SHARES_ENV: ",".join(f"{uuid}={shares}" for uuid, shares in wanted.items())}
        envs[VISIBLE_ENV] = ",".join(wanted) if self._ways.is_env else NO_DEVICES
        names = [qualified(uuid) for uuid in wanted] if self._ways.is_cdi else []
        return ContainerAllocateResponse(envs=envs, cdi_devices=[CDIDevice(name=name) for name in names])
