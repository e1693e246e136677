# SPDX-License-Identifier: Apache-2.0
"""A random walk through the driver's calls, the same for the same seed, against the model of model.py.

Some calls are wrong on purpose: parents that do not fit, clients of somebody else, handles in use, sizes that are not
there. Each call's status must be the one the model gives.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from tests.vm import rm
from tests.vm.model import Client, Model, Object

MIB = 1 << 20


class Doer(Protocol):
    """An Rm, or an Actor that has one."""

    def do(self, name: str, *args: Any, **named: Any) -> Any: ...


WEIGHTS = {
    "client": 3,
    "device": 6,
    "subdevice": 3,
    "tsg": 8,
    "channel": 11,
    "compute": 13,
    "memory": 26,
    "sysmem": 4,
    "dup": 5,
    "free": 17,
    "heap_free": 6,
    "close": 0.4,
}
CLASS_OF = {
    "device": rm.DEVICE,
    "subdevice": rm.SUBDEVICE,
    "tsg": rm.TSG,
    "channel": rm.CHANNEL,
    "compute": rm.COMPUTE,
    "memory": rm.MEMORY,
    "sysmem": rm.SYSMEM,
}
PARENTS = {
    "device": (rm.ROOT_CLIENT,),
    "subdevice": (rm.DEVICE,),
    "tsg": (rm.DEVICE,),
    # Mostly in a group, as CUDA does; and now and then without.
    "channel": (rm.TSG, rm.TSG, rm.TSG, rm.DEVICE),
    "compute": (rm.CHANNEL,),
    "memory": (rm.DEVICE,),
    "sysmem": (rm.DEVICE,),
    "dup": (rm.DEVICE,),
}
WRONG = 0.06
"""How often a parent, a client or a handle is a wrong one."""
MANY = 80
"""From so many objects of a client on, half of the calls are frees."""
SMALL, LARGE = 4 * MIB, 512 * MIB


class Walk:
    """``doers`` are processes or files that take turns; ``close`` ends one's file and opens another."""

    def __init__(self, seed: int, doers: Sequence[Doer], gpus: int, capacity: int) -> None:
        self.random = random.Random(seed)
        self.doers = list(doers)
        self.files: list[object] = [object() for _ in doers]
        self.model = Model(gpus, capacity)
        self.gpus = gpus
        self.calls = 0

    def step(self) -> str:
        """One call; what it was, and what came of it. AssertionError when the model disagrees."""
        self.calls += 1
        who = self.random.randrange(len(self.doers))
        op = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if op == "close":
            return self.close(who)
        if op == "client" or not self._clients(who):
            return self._client(who)
        client, own = self._pick_client(who)
        if len(own.objects) > MANY and self.random.random() < 0.5:
            op = "free"
        if op in ("free", "heap_free"):
            return self._free(who, op, client, own)
        return self._make(who, op, client, own)

    def close(self, who: int) -> str:
        self.doers[who].do("close")
        self.model.close(self.files[who])
        self.files[who] = object()
        self.doers[who].do("open")
        return f"#{self.calls} {who}: close"

    def _clients(self, who: int) -> list[int]:
        return [handle for handle, one in self.model.clients.items() if one.file is self.files[who]]

    def _client(self, who: int) -> str:
        asked = self.random.choice([0, 0, 0, *self.model.clients, self.random.randrange(1, 1 << 16)])
        result, status = self._call(who, "client", asked)
        return self._judge(
            f"{who}: client({asked:#x})", status, self.model.new_client(self.files[who], asked, result)
        )

    def _pick_client(self, who: int) -> tuple[int, Client]:
        own = self.random.choice(self._clients(who))
        if self.random.random() < WRONG / 3:
            handle = self.random.choice([*self.model.clients, self.random.randrange(1 << 32)])
            return handle, self.model.clients.get(handle, self.model.clients[own])
        return own, self.model.clients[own]

    def _pick(self, client: Client, *classes: int) -> int:
        """An object of one of these classes; sometimes of any, or none."""
        cls = self.random.choice(classes) if classes else 0
        fitting = [one.handle for one in client.objects.values() if one.cls == cls]
        if not fitting or self.random.random() < WRONG:
            return self.random.choice([*client.objects, self.random.randrange(1 << 32)])
        return self.random.choice(fitting)

    def _asked(self, client: Client) -> int:
        draw = self.random.random()
        if draw < WRONG / 2:
            return self.random.choice(list(client.objects))
        return self.random.randrange(1, 1 << 20) if draw < 0.3 else 0

    def _size(self) -> int:
        draw = self.random.random()
        if draw < 0.02:
            return self.random.choice([0, (1 << 64) - 1, 1 << 63, 1 << 40])
        return self.random.randrange(1, LARGE if draw < 0.08 else SMALL)

    def _make(self, who: int, op: str, client: int, own: Client) -> str:
        parent, asked = self._pick(own, *PARENTS[op]), self._asked(own)
        file = self.files[who]
        text = f"{who}: {op}({client:#x}, {parent:#x}, handle={asked:#x}"
        if op == "dup":
            other = self.random.choice(list(self.model.clients))
            source = self._pick(self.model.clients[other], rm.MEMORY, rm.SYSMEM)
            result, status = self._call(who, op, client, parent, other, source, handle=asked)
            wanted = self.model.dup(file, client, parent, other, source, asked, result)
            return self._judge(f"{text}, {other:#x}, {source:#x})", status, wanted)
        if op in ("memory", "sysmem"):
            size = self._size()
            route = self.random.choice(("alloc", "heap", "escape") if op == "memory" else ("alloc", "heap"))
            result, status = self._call(who, op, client, parent, size, route=route, handle=asked)
            exact, cls = route == "escape", CLASS_OF[op]
            wanted = self.model.new_memory(file, client, parent, cls, size, asked, result, exact)
            return self._judge(f"{text}, size={size}, {route})", status, wanted)
        if op == "device":
            gpu = self.random.randrange(self.gpus) if self.random.random() > WRONG else self.gpus
            # Rm.device hangs it below the client; anything else is a call of its own.
            parent = client
            result, status = self._call(who, op, client, gpu, handle=asked)
            wanted = self.model.new_object(file, client, parent, rm.DEVICE, asked, result, gpu)
            return self._judge(f"{text}, gpu={gpu})", status, wanted)
        result, status = self._call(who, op, client, parent, handle=asked)
        wanted = self.model.new_object(file, client, parent, CLASS_OF[op], asked, result)
        return self._judge(f"{text})", status, wanted)

    def _free(self, who: int, op: str, client: int, own: Client) -> str:
        if op == "heap_free":
            handle = self._pick(own, rm.MEMORY)
            _, status = self._call(who, op, client, 0, handle)
            wanted = self.model.heap_free(self.files[who], client, handle)
            return self._judge(f"{who}: heap_free({client:#x}, {handle:#x})", status, wanted)
        # The higher in the tree the rarer, or the walk would stay at its beginning.
        handle = self._pick(own, rm.COMPUTE, rm.CHANNEL, rm.MEMORY, rm.MEMORY, rm.SYSMEM)
        draw = self.random.random()
        if draw < 0.12:
            handle = self._pick(
                own, *((rm.ROOT_CLIENT,) if draw < 0.02 else (rm.DEVICE, rm.TSG, rm.SUBDEVICE))
            )
        elif self._is_high(own.objects.get(handle)):
            handle = self.random.randrange(1 << 32)
        _, status = self._call(who, op, client, handle)
        wanted = self.model.free(self.files[who], client, handle)
        return self._judge(f"{who}: free({client:#x}, {handle:#x})", status, wanted)

    @staticmethod
    def _is_high(one: Object | None) -> bool:
        return one is not None and one.cls in (rm.ROOT_CLIENT, rm.DEVICE)

    def _call(self, who: int, name: str, *args: Any, **named: Any) -> tuple[int | None, int]:
        try:
            return self.doers[who].do(name, *args, **named), rm.OK
        except rm.RmError as error:
            return None, error.status

    def _judge(self, text: str, status: int, wanted: int) -> str:
        line = f"#{self.calls} {text} -> {status:#x}"
        assert status == wanted, f"{line}, but by the rules {wanted:#x}"
        return line


def differences(model: Model, books: rm.Books) -> list[str]:
    """Where the books and the model disagree, in words."""
    found = []
    said = {(use.client, use.gpu): (use.contexts, use.vram) for use in books.uses}
    wanted = model.uses()
    for key in sorted(said.keys() | wanted.keys()):
        if said.get(key) != wanted.get(key):
            found.append(f"client {key[0]:#x} gpu {key[1]}: books {said.get(key)}, model {wanted.get(key)}")
    if set(books.clients) != set(model.clients):
        found.append(f"clients: {sorted(books.clients)} and {sorted(model.clients)}")
    for gpu, held in books.held.items():
        if held != model.held[gpu]:
            found.append(f"gpu {gpu}: held {held}, model {model.held[gpu]}")
    return found
