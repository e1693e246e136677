# SPDX-License-Identifier: Apache-2.0
"""What the driver's books must say, in plain Python: nothing of the driver's code, and no kernel.

Every method takes what the call was given and answers with the status that must come. ``new`` is the handle the driver
chose, when it was asked to choose and did; the rules are in README.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.vm import rm

PAGE = 4096
CHILDREN = {
    rm.DEVICE: (rm.ROOT_CLIENT,),
    rm.SUBDEVICE: (rm.DEVICE,),
    rm.TSG: (rm.DEVICE,),
    rm.CHANNEL: (rm.DEVICE, rm.TSG),
    rm.COMPUTE: (rm.CHANNEL,),
    rm.MEMORY: (rm.DEVICE, rm.SUBDEVICE),
    rm.SYSMEM: (rm.DEVICE, rm.SUBDEVICE),
}


@dataclass(eq=False)
class Backing:
    gpu: int
    bytes: int
    handles: int = 1


@dataclass(eq=False)
class Object:
    cls: int
    handle: int
    parent: Object | None
    gpu: int = 0
    backing: Backing | None = None
    charged: int = 0
    children: list[Object] = field(default_factory=list)

    def below(self) -> list[Object]:
        """Itself and everything below it."""
        found = [self]
        for one in found:
            found.extend(one.children)
        return found


@dataclass(eq=False)
class Client:
    file: object
    root: Object
    objects: dict[int, Object]


class Model:
    def __init__(self, gpus: int, capacity: int) -> None:
        self.gpus, self.capacity = gpus, capacity
        self.clients: dict[int, Client] = {}
        self.held: Counter[int] = Counter()

    def new_client(self, file: object, asked: int, new: int | None) -> int:
        if asked in self.clients:
            return rm.DUPLICATE_NAME
        if new is not None:
            root = Object(rm.ROOT_CLIENT, new, None)
            self.clients[new] = Client(file, root, {new: root})
        return rm.OK

    def client_of(self, file: object, handle: int) -> Client | None:
        client = self.clients.get(handle)
        return client if client and client.file is file else None

    def new_object(
        self, file: object, client: int, parent: int, cls: int, asked: int, new: int | None, gpu: int = 0
    ) -> int:
        own = self.client_of(file, client)
        if own is None:
            return rm.INVALID_CLIENT
        status = self._check(own, parent, cls, asked)
        if status:
            return status
        if cls == rm.DEVICE and gpu >= self.gpus:
            return rm.INVALID_DEVICE
        if new is not None:
            made = self._enter(own, parent, cls, new)
            made.gpu = gpu if cls == rm.DEVICE else made.gpu
        return rm.OK

    def new_memory(
        self,
        file: object,
        client: int,
        parent: int,
        cls: int,
        size: int,
        asked: int,
        new: int | None,
        is_exact: bool,
    ) -> int:
        own = self.client_of(file, client)
        if own is None:
            return rm.INVALID_CLIENT
        status = self._check(own, parent, cls, asked)
        if status:
            return status
        if size == 0:
            return rm.INVALID_ARGUMENT
        bytes_ = size if is_exact else -(-size // PAGE) * PAGE
        gpu = own.objects[parent].gpu
        if cls == rm.MEMORY and self.held[gpu] + bytes_ > self.capacity:
            return rm.NO_MEMORY
        if new is not None:
            made = self._enter(own, parent, cls, new)
            if cls == rm.MEMORY:
                made.backing, made.charged = Backing(gpu, bytes_), bytes_
                self.held[gpu] += bytes_
        return rm.OK

    def dup(
        self,
        file: object,
        client: int,
        parent: int,
        source_client: int,
        source: int,
        asked: int,
        new: int | None,
    ) -> int:
        own = self.client_of(file, client)
        if own is None or source_client not in self.clients:
            return rm.INVALID_CLIENT
        original = self.clients[source_client].objects.get(source)
        if original is None:
            return rm.NOT_FOUND
        if original.cls not in (rm.MEMORY, rm.SYSMEM):
            return rm.NOT_SUPPORTED
        status = self._check(own, parent, original.cls, asked)
        if status:
            return status
        if new is not None:
            made = self._enter(own, parent, original.cls, new)
            made.backing = original.backing
            if made.backing:
                made.backing.handles += 1
        return rm.OK

    def free(self, file: object, client: int, handle: int) -> int:
        own = self.client_of(file, client)
        if own is None:
            return rm.INVALID_CLIENT
        if handle not in own.objects:
            return rm.NOT_FOUND
        self._leave(own, own.objects[handle])
        return rm.OK

    def heap_free(self, file: object, client: int, handle: int) -> int:
        own = self.client_of(file, client)
        if own and handle in own.objects and own.objects[handle].cls not in (rm.MEMORY, rm.SYSMEM):
            return rm.INVALID_HANDLE
        return self.free(file, client, handle)

    def close(self, file: object) -> None:
        for client in [one for one in self.clients.values() if one.file is file]:
            self._leave(client, client.root)

    def uses(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(client, GPU) -> (contexts, VRAM bytes), where the client has a device."""
        found = {}
        for handle, client in self.clients.items():
            all_ = client.objects.values()
            for gpu in {one.gpu for one in all_ if one.cls == rm.DEVICE}:
                groups = {id(_group(one)) for one in all_ if one.cls == rm.COMPUTE and one.gpu == gpu}
                found[handle, gpu] = (len(groups), sum(one.charged for one in all_ if one.gpu == gpu))
        return found

    def _check(self, client: Client, parent: int, cls: int, asked: int) -> int:
        above = client.objects.get(parent)
        if above is None or above.cls not in CHILDREN[cls]:
            return rm.INVALID_PARENT
        return rm.DUPLICATE_NAME if asked in client.objects else rm.OK

    def _enter(self, client: Client, parent: int, cls: int, handle: int) -> Object:
        above = client.objects[parent]
        made = client.objects[handle] = Object(cls, handle, above, above.gpu)
        above.children.append(made)
        return made

    def _leave(self, client: Client, top: Object) -> None:
        for one in top.below():
            del client.objects[one.handle]
            if one.backing:
                one.backing.handles -= 1
                if not one.backing.handles:
                    self.held[one.backing.gpu] -= one.backing.bytes
        if top.parent is None:
            del self.clients[top.handle]
        else:
            top.parent.children.remove(top)


def _group(compute: Object) -> Object:
    channel = compute.parent
    assert channel is not None and channel.parent is not None
    return channel.parent if channel.parent.cls == rm.TSG else channel
