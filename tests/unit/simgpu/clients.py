# SPDX-License-Identifier: Apache-2.0
"""Small CUDA programs for the tests: ``python clients.py NAME`` runs one and prints what it saw.

Each prints one JSON object per line. One that must stay alive waits for its standard input to end.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

NOT_INITIALIZED = 3
NOT_READY = 600
NON_BLOCKING = 1
PER_THREAD = c_void_p(2)
"""The handle that stands for the stream of the calling thread."""
LAUNCHES = {
    "cuLaunchKernelEx": 1_000_001,
    "cuLaunchKernelEx_ptsz": 2_000_020,
    "cuLaunchCooperativeKernel": 3_000_300,
    "cuLaunchCooperativeKernel_ptsz": 4_004_000,
}
"""Other ways to launch than the usual, and the ns of a kernel each: no two sums of some are equal."""
PEER_COPIES = {"cuMemcpyPeerAsync": 1_000_001, "cuMemcpyPeerAsync_ptsz": 2_000_020}
WAITING_COPIES = {"cuMemcpyHtoD_v2": 20_000_300, "cuMemcpyDtoH_v2": 20_004_000, "cuMemcpy": 20_050_000}
INSIDE_COPIES = {"cuMemcpyDtoD_v2": 600_000}
SETS = {"cuMemsetD8Async": 1_000, "cuMemsetD8Async_ptsz": 30_000}
"""Bytes that each call moves or sets."""


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("shape", c_uint * 7),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


class Cuda:
    """libcuda, with a current context on device 0 and a function whose argument is its duration."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        self.lib = ctypes.CDLL(path)
        self.call("cuInit", 0)
        self.context = c_void_p()
        self.call("cuCtxCreate_v2", byref(self.context), 0, 0)
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), b"")
        self.function = c_void_p()
        self.call("cuModuleGetFunction", byref(self.function), module, b"k_250us")

    def rc(self, name: str, *args: Any) -> int:
        return int(getattr(self.lib, name)(*args))

    def call(self, name: str, *args: Any) -> None:
        rc = self.rc(name, *args)
        if rc:
            raise RuntimeError(f"{name} returned {rc}")

    def stream(self, flags: int = 0) -> c_void_p:
        handle = c_void_p()
        self.call("cuStreamCreate", byref(handle), flags)
        return handle

    def event(self) -> c_void_p:
        handle = c_void_p()
        self.call("cuEventCreate", byref(handle), 0)
        return handle

    def record(self, stream: c_void_p | None) -> c_void_p:
        event = self.event()
        self.call("cuEventRecord", event, stream)
        return event

    def launch(self, ns: int | None, stream: c_void_p | None = None, name: str = "cuLaunchKernel") -> None:
        value = c_uint64(ns or 0)
        params = None if ns is None else (c_void_p * 1)(ctypes.addressof(value))
        shape = (1, 1, 1, 1, 1, 1, 0)
        if name.startswith("cuLaunchKernelEx"):
            config = LaunchConfig((c_uint * 7)(*shape), stream)
            self.call(name, byref(config), self.function, params, None)
        elif name.startswith("cuLaunchCooperativeKernel"):
            self.call(name, self.function, *shape, stream, params)
        else:
            self.call(name, self.function, *shape, stream, params, None)

    def elapsed_us(self, start: c_void_p, end: c_void_p) -> float:
        ms = c_float()
        self.call("cuEventElapsedTime", byref(ms), start, end)
        return round(ms.value * 1000, 1)

    def alloc(self, size: int) -> tuple[int, int]:
        address = c_uint64()
        return self.rc("cuMemAlloc_v2", byref(address), c_size_t(size)), address.value


class Gate:
    """Streams that stand still until all they are to do is queued: a client that is held up measures the same."""

    def __init__(self, cuda: Cuda) -> None:
        flag, stream = c_void_p(), cuda.stream(NON_BLOCKING)
        cuda.call("cuMemHostAlloc", byref(flag), c_size_t(4), 0)
        self._cuda = cuda
        self._word = ctypes.cast(flag, ctypes.POINTER(ctypes.c_uint32))
        cuda.call("cuStreamWaitValue32_v2", stream, flag, 1, 1)
        self.opened = cuda.record(stream)

    def hold(self, stream: c_void_p) -> None:
        self._cuda.call("cuStreamWaitEvent", stream, self.opened, 0)

    def open(self) -> None:
        self._word[0] = 1


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def exact() -> None:
    cuda = Cuda()
    for i in range(100):
        cuda.launch(100_000 + i)
    cuda.launch(None)
    cuda.call("cuCtxSynchronize")
    say(handle=cuda.context.value)
    sys.stdin.read()


def events() -> None:
    """Stream b waits for an event of stream a; c is independent of both."""
    cuda = Cuda()
    a, b, c = (cuda.stream(NON_BLOCKING) for _ in range(3))
    gate = Gate(cuda)
    gate.hold(a)
    start = cuda.record(a)
    cuda.launch(20_000_000, a)
    a_done = cuda.record(a)
    cuda.call("cuStreamWaitEvent", b, a_done, 0)
    cuda.launch(1_000_000, b)
    b_done = cuda.record(b)
    c_start = cuda.record(c)
    cuda.launch(2_000_000, c)
    c_done = cuda.record(c)
    cuda.call("cuEventSynchronize", c_done)
    early = cuda.rc("cuEventQuery", b_done), cuda.rc("cuStreamQuery", a)
    gate.open()
    cuda.call("cuEventSynchronize", b_done)
    cuda.call("cuCtxSynchronize")
    say(
        early=early,
        late=(cuda.rc("cuEventQuery", b_done), cuda.rc("cuStreamQuery", a)),
        a=cuda.elapsed_us(start, a_done),
        b=cuda.elapsed_us(a_done, b_done),
        c=cuda.elapsed_us(c_start, c_done),
    )


def legacy() -> None:
    """The legacy stream waits for blocking streams and they for it; the non-blocking one does neither."""
    cuda = Cuda()
    first, second, free = cuda.stream(), cuda.stream(), cuda.stream(NON_BLOCKING)
    gate = Gate(cuda)
    gate.hold(first)
    start = cuda.record(first)
    cuda.launch(20_000_000, first)
    cuda.launch(1_000_000, None)
    on_legacy = cuda.record(None)
    cuda.launch(1_000_000, second)
    on_second = cuda.record(second)
    cuda.launch(1_000_000, free)
    on_free = cuda.record(free)
    cuda.call("cuEventSynchronize", on_free)
    early = cuda.rc("cuEventQuery", on_legacy), cuda.rc("cuEventQuery", on_second)
    gate.open()
    cuda.call("cuStreamSynchronize", None)
    cuda.call("cuCtxSynchronize")
    say(
        early=early,
        legacy=cuda.elapsed_us(start, on_legacy),
        second=cuda.elapsed_us(start, on_second),
    )


def graphs() -> None:
    cuda = Cuda()
    stream = cuda.stream(NON_BLOCKING)
    cuda.call("cuStreamBeginCapture_v2", stream, 0)
    for _ in range(10):
        cuda.launch(100_000, stream)
    graph, executable = c_void_p(), c_void_p()
    cuda.call("cuStreamEndCapture", stream, byref(graph))
    cuda.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    for _ in range(5):
        cuda.call("cuGraphLaunch", executable, stream)
    cuda.call("cuStreamSynchronize", stream)
    say(handle=cuda.context.value)
    sys.stdin.read()


def memory() -> None:
    cuda = Cuda()
    free, total = c_size_t(), c_size_t()
    half, address = cuda.alloc(600 << 20)
    too_much, _ = cuda.alloc(600 << 20)
    cuda.call("cuMemGetInfo_v2", byref(free), byref(total))
    say(half=half, too_much=too_much, free=free.value, total=total.value)
    sys.stdin.readline()
    cuda.call("cuMemFree_v2", c_uint64(address))
    say(again=cuda.alloc(600 << 20)[0], unknown=cuda.rc("cuMemFree_v2", c_uint64(12345)))


def copies() -> None:
    """A copy beside a kernel, and one in stream order after it."""
    cuda = Cuda()
    compute, beside = cuda.stream(NON_BLOCKING), cuda.stream(NON_BLOCKING)
    gate = Gate(cuda)
    gate.hold(compute)
    gate.hold(beside)
    start = cuda.record(compute)
    cuda.launch(20_000_000, compute)
    cuda.call("cuMemcpyHtoDAsync_v2", c_uint64(1), None, c_size_t(1_000_000), beside)
    beside_done = cuda.record(beside)
    cuda.call("cuMemcpyDtoHAsync_v2", None, c_uint64(1), c_size_t(1_000_000), compute)
    after_done = cuda.record(compute)
    gate.open()
    cuda.call("cuCtxSynchronize")
    say(beside=cuda.elapsed_us(start, beside_done), after=cuda.elapsed_us(start, after_done))
    sys.stdin.read()


def launches() -> None:
    """Each of LAUNCHES between two events of the stream it is for, while a blocking one stands still."""
    cuda = Cuda()
    own, still = cuda.stream(NON_BLOCKING), cuda.stream()
    gate = Gate(cuda)
    gate.hold(still)
    cuda.launch(1, still)
    took_us = {}
    for name, ns in LAUNCHES.items():
        is_default = name.endswith("_ptsz")
        stream = PER_THREAD if is_default else own
        start = cuda.record(stream)
        cuda.launch(ns, None if is_default else own, name)
        end = cuda.record(stream)
        cuda.call("cuEventSynchronize", end)
        took_us[name] = cuda.elapsed_us(start, end)
    held = cuda.rc("cuStreamQuery", still)
    gate.open()
    cuda.call("cuCtxSynchronize")
    say(took_us=took_us, held=held)
    sys.stdin.read()


def transfers() -> None:
    """What is queued; then the copies that return when they are done, and the one that does not."""
    cuda = Cuda()
    own = cuda.stream(NON_BLOCKING)
    both = c_uint64(1), cuda.context, c_uint64(2), cuda.context
    for name, size in PEER_COPIES.items():
        cuda.call(name, *both, c_size_t(size), None if name.endswith("_ptsz") else own)
    for name, size in SETS.items():
        cuda.call(name, c_uint64(1), 0, c_size_t(size), None if name.endswith("_ptsz") else own)
    cuda.call("cuCtxSynchronize")
    left = {}
    for name, size in WAITING_COPIES.items():
        cuda.call(name, c_uint64(1), c_uint64(2), c_size_t(size))
        left[name] = cuda.rc("cuStreamQuery", None)
    gate = Gate(cuda)
    gate.hold(c_void_p())
    for name, size in INSIDE_COPIES.items():
        cuda.call(name, c_uint64(1), c_uint64(2), c_size_t(size))
        left[name] = cuda.rc("cuStreamQuery", None)
    gate.open()
    cuda.call("cuCtxSynchronize")
    say(left=left)
    sys.stdin.read()


def devices() -> None:
    lib = ctypes.CDLL("libcuda.so.1")
    rc = lib.cuInit(0)
    count = c_int()
    lib.cuDeviceGetCount(byref(count))
    uuids = []
    for i in range(count.value):
        raw = ctypes.create_string_buffer(16)
        lib.cuDeviceGetUuid_v2(raw, i)
        uuids.append(raw.raw.hex())
    say(rc=rc, uuids=uuids)


def two_devices() -> None:
    """One process, a context on each of two GPUs, an event that crosses."""
    cuda = Cuda()
    first, second = cuda.stream(NON_BLOCKING), c_void_p()
    cuda.launch(10_000_000, first)
    event = cuda.record(first)
    other = c_void_p()
    cuda.call("cuCtxCreate_v2", byref(other), 0, 1)
    cuda.call("cuStreamCreate", byref(second), NON_BLOCKING)
    cuda.call("cuStreamWaitEvent", second, event, 0)
    cuda.launch(3_000_000, second)
    cuda.call("cuStreamSynchronize", second)
    say(first=cuda.rc("cuEventQuery", event))
    sys.stdin.read()


def forked() -> None:
    cuda = Cuda()
    read_fd, write_fd = os.pipe()
    if os.fork() == 0:
        count = c_int()
        before = cuda.rc("cuDeviceGetCount", byref(count)), cuda.rc("cuCtxSynchronize")
        child = Cuda()
        child.launch(1_000_000)
        os.write(write_fd, json.dumps([*before, child.rc("cuCtxSynchronize")]).encode())
        os._exit(0)
    os.wait()
    cuda.launch(1_000_000)
    say(child=json.loads(os.read(read_fd, 100)), parent=cuda.rc("cuCtxSynchronize"))


def queued() -> None:
    """Leaves 300 kernels in the queue, each of the ns in the argument, and 1 MiB allocated."""
    cuda = Cuda()
    cuda.alloc(1 << 20)
    for _ in range(300):
        cuda.launch(int(sys.argv[2]))
    say(handle=cuda.context.value)
    sys.stdin.read()


def callbacks() -> None:
    """A host function between two kernels, and a flag the GPU writes."""
    cuda = Cuda()
    stream = cuda.stream(NON_BLOCKING)
    seen: list[int] = []
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda user: seen.append(int(user or 0)))
    flag = c_void_p()
    cuda.call("cuMemHostAlloc", byref(flag), c_size_t(4), 0)
    word = ctypes.cast(flag, ctypes.POINTER(ctypes.c_uint32))
    cuda.launch(1_000_000, stream)
    cuda.call("cuLaunchHostFunc", stream, function, c_void_p(7))
    cuda.launch(1_000_000, stream)
    cuda.call("cuStreamWriteValue32_v2", stream, flag, 42, 0)
    cuda.call("cuStreamSynchronize", stream)
    cuda.call("cuStreamWaitValue32_v2", stream, flag, 43, 1)
    held = cuda.rc("cuStreamQuery", stream)
    written = word[0]
    word[0] = 43
    cuda.call("cuStreamSynchronize", stream)
    say(seen=seen, flag=written, held=held)


def addresses() -> None:
    """What cuGetProcAddress answers, by the name of the export at that address."""
    lib = ctypes.CDLL("libcuda.so.1")
    answers = {}
    for name, version, flags in json.loads(sys.argv[2]):
        out = c_void_p()
        rc = lib.cuGetProcAddress_v2(name.encode(), byref(out), version, c_uint64(flags), None)
        answers[f"{name}/{version}/{flags}"] = (rc, out.value)
    base = ctypes.cast(lib.cuInit, c_void_p).value
    say(base=base, answers=answers)


def copy_of_library() -> None:
    """The same file on another inode, loaded by its path."""
    cuda = Cuda(sys.argv[2])
    cuda.launch(1_000_000)
    cuda.call("cuCtxSynchronize")
    say(handle=cuda.context.value)
    sys.stdin.read()


def uninitialised() -> None:
    lib = ctypes.CDLL("libcuda.so.1")
    count = c_int()
    say(count=lib.cuDeviceGetCount(byref(count)), sync=lib.cuCtxSynchronize(), init=lib.cuInit(0))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
