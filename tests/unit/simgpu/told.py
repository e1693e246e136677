# SPDX-License-Identifier: Apache-2.0
"""A CUDA program that makes the calls it is told, one a line, and says what each returned.

A line is ``[thread, method, argument, ...]``, of the methods of :class:`Told`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_void_p

from tests.support import let_run
from tests.unit.simgpu.clients import NOT_READY, Cuda, Gate, say


class Told:
    """What a program that is told each call can be told."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        self._gates: list[Gate] = []

    def rc(self, name: str, *handles: int) -> int:
        return self.cuda.rc(name, *map(c_void_p, handles))

    def stream(self, flags: int = 0) -> int:
        return self.cuda.stream(flags).value or 0

    def event(self) -> int:
        return self.cuda.event().value or 0

    def record(self, stream: int) -> int:
        return self.cuda.record(c_void_p(stream)).value or 0

    def launch(self, ns: int, stream: int, suffix: str = "") -> None:
        self.cuda.launch(ns, c_void_p(stream), f"cuLaunchKernel{suffix}")

    def graph(self, ns: int) -> int:
        """A graph of one kernel, ready to be launched."""
        stream, graph, executable = self.cuda.stream(), c_void_p(), c_void_p()
        self.cuda.call("cuStreamBeginCapture_v2", stream, 0)
        self.cuda.launch(ns, stream)
        self.cuda.call("cuStreamEndCapture", stream, byref(graph))
        self.cuda.call("cuGraphInstantiateWithFlags", byref(executable), graph, ctypes.c_uint64(0))
        return executable.value or 0

    def ask_often(self, name: str, handle: int, pause_ms: int, more: tuple[int, int] = (0, 0)) -> int:
        """Until it is done. ``more``: a stream, and how often a kernel goes there after it was asked.

        Returns the ns since it first asked what it asked last.
        """
        stream, many = more
        begun_ns = time.monotonic_ns()
        while rc := self.cuda.rc(name, c_void_p(handle)):
            if rc != NOT_READY:
                raise RuntimeError(f"{name} returned {rc}")
            let_run(pause_ms / 1000)
            if many:
                many -= 1
                self.launch(1000, stream)
                begun_ns = time.monotonic_ns()
        return time.monotonic_ns() - begun_ns

    def gate(self) -> int:
        """An event of the current context that comes when :meth:`open` is told."""
        self._gates.append(Gate(self.cuda))
        return self._gates[-1].opened.value or 0

    def open(self) -> None:
        for gate in self._gates:
            gate.open()

    def context(self, device: int) -> int:
        """A new one, current from now on."""
        handle = c_void_p()
        self.cuda.call("cuCtxCreate_v2", byref(handle), 0, device)
        return handle.value or 0

    def retain(self, device: int) -> int:
        """The primary one, which becomes current nowhere."""
        handle = c_void_p()
        self.cuda.call("cuDevicePrimaryCtxRetain", byref(handle), device)
        return handle.value or 0

    def uuid(self, device: int) -> str:
        raw = ctypes.create_string_buffer(16)
        self.cuda.call("cuDeviceGetUuid_v2", raw, device)
        return raw.raw.hex()


def main() -> None:
    threads: dict[int, ThreadPoolExecutor] = {}
    one = Told()
    say(result=one.cuda.context.value)
    for line in sys.stdin:
        thread, method, *arguments = json.loads(line)
        where = threads.setdefault(thread, ThreadPoolExecutor(1))
        call = getattr(one, method)
        say(result=where.submit(call, *arguments).result() if thread else call(*arguments))


if __name__ == "__main__":
    main()
