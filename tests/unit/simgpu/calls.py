# SPDX-License-Identifier: Apache-2.0
"""Programs that use what unmodified clients use besides launches: ``python calls.py NAME`` prints one JSON object.

Modules with an image, memory with bytes in it, and what can be asked of both.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

from tests.unit.simgpu.clients import NON_BLOCKING, Cuda, say

PTX = b".version 8.0\n.target sm_90\n.visible .entry half_k(.param .u64 p)\n{ ret; }\n.entry one_k\n() { ret; }\n"
HOST, DEVICE = 1, 2
"""CUmemorytype."""


class End2D(ctypes.Structure):
    """Half of CUDA_MEMCPY2D."""

    _fields_ = (
        ("x", c_size_t),
        ("y", c_size_t),
        ("type", c_uint),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("pitch", c_size_t),
    )


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (("src", End2D), ("dst", End2D), ("width", c_size_t), ("height", c_size_t))


class End3D(ctypes.Structure):
    """Half of CUDA_MEMCPY3D."""

    _fields_ = (
        ("x", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("lod", c_size_t),
        ("type", c_uint),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("reserved", c_void_p),
        ("pitch", c_size_t),
        ("height", c_size_t),
    )


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = (
        ("src", End3D),
        ("dst", End3D),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    )


def cubin(kernel: bytes, variable: bytes, size: int) -> bytes:
    """An ELF file with two symbols: a kernel and a variable of so many bytes."""
    names = b"\0" + kernel + b"\0" + variable + b"\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0x10, 1, 0, 8)
    symbols += struct.pack("<IBBHQQ", 2 + len(kernel), 0x11, 0, 1, 0, size)
    at = 64 + len(names)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, at + len(symbols), 0, 64, 0, 0, 64, 3, 2)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, at, len(symbols), 2, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    return head + names + symbols + sections


def load(cuda: Cuda, image: bytes) -> c_void_p:
    module = c_void_p()
    cuda.call("cuModuleLoadDataEx", byref(module), image, 0, None, None)
    return module


def kernel_of(cuda: Cuda, module: c_void_p, name: bytes) -> c_void_p:
    handle = c_void_p()
    cuda.call("cuModuleGetFunction", byref(handle), module, name)
    return handle


def address_of(cuda: Cuda, size: int) -> c_uint64:
    rc, address = cuda.alloc(size)
    assert rc == 0
    return c_uint64(address)


def read(cuda: Cuda, address: int, size: int) -> bytes:
    into = ctypes.create_string_buffer(size)
    cuda.call("cuMemcpyDtoH_v2", into, c_uint64(address), c_size_t(size))
    return into.raw


# ---- modules ----


def real_kernels() -> None:
    """Their arguments are theirs: the first one of half_k is a device address, far more than a second of ns."""
    cuda = Cuda()
    module = load(cuda, PTX)
    pointer = address_of(cuda, 4096)
    params = (c_void_p * 1)(ctypes.addressof(pointer))
    stream = cuda.stream(NON_BLOCKING)
    took_us = {}
    for name in (b"half_k", b"one_k"):
        start = cuda.record(stream)
        cuda.call("cuLaunchKernel", kernel_of(cuda, module, name), *(1,) * 6, 0, stream, params, None)
        end = cuda.record(stream)
        cuda.call("cuEventSynchronize", end)
        took_us[name.decode()] = cuda.elapsed_us(start, end)
    out, count = c_void_p(), c_uint()
    missing = cuda.rc("cuModuleGetFunction", byref(out), module, b"two_k")
    cuda.call("cuModuleGetFunctionCount", byref(count), module)
    say(took_us=took_us, missing=missing, count=count.value)
    sys.stdin.read()


def bad_duration() -> None:
    cuda = Cuda()
    out = c_void_p()
    say(rc=cuda.rc("cuModuleGetFunction", byref(out), load(cuda, PTX), b"one_k"))


def library() -> None:
    """A cubin as a library: no context is needed to load it, and a kernel of it launches as it is."""
    cuda = Cuda()
    one, kernel, module, function = (c_void_p() for _ in range(4))
    image = cubin(b"_Z4workPf", b"table", 24)
    cuda.call("cuLibraryLoadData", byref(one), image, None, None, 0, None, None, 0)
    cuda.call("cuLibraryGetKernel", byref(kernel), one, b"_Z4workPf")
    cuda.call("cuLibraryGetModule", byref(module), one)
    cuda.call("cuKernelGetFunction", byref(function), kernel)
    name, count = c_char_p(), c_uint()
    cuda.call("cuKernelGetName", byref(name), kernel)
    cuda.call("cuLibraryGetKernelCount", byref(count), one)
    table, size = c_uint64(), c_size_t()
    cuda.call("cuLibraryGetGlobal", byref(table), byref(size), one, b"table")
    cuda.call("cuMemcpyHtoD_v2", table, b"x" * 24, c_size_t(24))
    cuda.call("cuLaunchKernel", kernel, *(1,) * 6, 0, None, None, None)
    cuda.call("cuLaunchKernel", function, *(1,) * 6, 0, None, None, None)
    cuda.call("cuCtxSynchronize")
    no_kernel = cuda.rc("cuLibraryGetKernel", byref(kernel), one, b"table")
    text = read(cuda, table.value, 24).decode()
    say(name=(name.value or b"").decode(), count=count.value, size=size.value, text=text, no_kernel=no_kernel)
    sys.stdin.read()


def linked() -> None:
    cuda = Cuda()
    link, image, size, module = c_void_p(), c_void_p(), c_size_t(), c_void_p()
    cuda.call("cuLinkCreate_v2", 0, None, None, byref(link))
    cuda.call("cuLinkAddData_v2", link, 1, PTX, c_size_t(len(PTX)), b"a.ptx", 0, None, None)
    cuda.call("cuLinkComplete", link, byref(image), byref(size))
    cuda.call("cuModuleLoadData", byref(module), image)
    cuda.call("cuLinkDestroy", link)
    say(size=size.value, found=kernel_of(cuda, module, b"half_k").value is not None)


def kernels() -> None:
    """Attributes and occupancy."""
    cuda = Cuda()
    kernel = kernel_of(cuda, load(cuda, PTX), b"one_k")
    value, grid, block = c_int(), c_int(), c_int()
    seen = {}
    for attribute in (0, 4, 6, 8):
        cuda.call("cuFuncGetAttribute", byref(value), attribute, kernel)
        seen[str(attribute)] = value.value
    too_much = cuda.rc("cuFuncSetAttribute", kernel, 8, 232449)
    cuda.call("cuFuncSetAttribute", kernel, 8, 232448)
    cuda.call("cuFuncGetAttribute", byref(value), 8, kernel)
    active = []
    for size, shared in ((1024, 0), (128, 0), (32, 0), (128, 100_000)):
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        cuda.call(name, byref(block), kernel, size, c_size_t(shared))
        active.append(block.value)
    name = "cuOccupancyMaxPotentialBlockSize"
    cuda.call(name, byref(grid), byref(block), kernel, None, c_size_t(0), 0)
    say(seen=seen, too_much=too_much, set=value.value, active=active, best=(grid.value, block.value))


def refused() -> None:
    """Launches of no thread, of too many, and with more shared memory than was asked for; and one that fits."""
    cuda = Cuda()
    kernel = kernel_of(cuda, load(cuda, PTX), b"one_k")
    rcs = [
        cuda.rc("cuLaunchKernel", kernel, *shape, None, None, None)
        for shape in (
            (0, 1, 1, 32, 1, 1, 0),
            (1, 1, 1, 1025, 1, 1, 0),
            (1, 1, 1, 32, 32, 2, 0),
            (1, 1, 1, 1, 1, 65, 0),
            (1, 65536, 1, 1, 1, 1, 0),
            (1, 1, 1, 32, 1, 1, 49153),
            (1 << 20, 1, 1, 1024, 1, 1, 49152),
        )
    ]
    cuda.call("cuCtxSynchronize")
    say(rcs=rcs)
    sys.stdin.read()


# ---- memory ----


def contents() -> None:
    cuda = Cuda()
    first, second = address_of(cuda, 1000), address_of(cuda, 1000)
    text = bytes(range(250)) * 4
    zeroes = read(cuda, first.value, 1000) == bytes(1000)
    cuda.call("cuMemcpyHtoD_v2", first, text, c_size_t(1000))
    cuda.call("cuMemcpyDtoD_v2", second, first, c_size_t(1000))
    part = read(cuda, second.value + 100, 50) == text[100:150]
    cuda.call("cuMemcpy", c_uint64(second.value + 500), first, c_size_t(10))
    unified = read(cuda, second.value + 500, 10) == text[:10]
    cuda.call("cuMemsetD8_v2", first, 7, c_size_t(10))
    cuda.call("cuMemsetD16_v2", c_uint64(first.value + 10), c_uint16(0x0102), c_size_t(5))
    cuda.call("cuMemsetD32Async", c_uint64(first.value + 20), c_uint32(0x01020304), c_size_t(5), None)
    cuda.call("cuMemsetD2D8_v2", c_uint64(first.value + 100), c_size_t(10), 9, c_size_t(2), c_size_t(3))
    is_set = read(cuda, first.value, 40) == b"\7" * 10 + b"\2\1" * 5 + b"\4\3\2\1" * 5
    plane = read(cuda, first.value + 100, 30)
    rows = [
        plane[i : i + 2] == b"\t\t" and plane[i + 2 : i + 10] == text[i + 102 : i + 110] for i in (0, 10, 20)
    ]
    beyond = cuda.rc("cuMemcpyHtoD_v2", c_uint64(first.value + 1), text, c_size_t(1000))
    say(zeroes=zeroes, part=part, unified=unified, set=is_set, rows=rows, beyond=beyond)


def rectangles() -> None:
    """A part of a matrix out of a pitched one, and the corner of a cube."""
    cuda = Cuda()
    base, pitch = c_uint64(), c_size_t()
    cuda.call("cuMemAllocPitch_v2", byref(base), byref(pitch), c_size_t(10), c_size_t(4), 4)
    matrix = ctypes.create_string_buffer(bytes(range(40)), 40)
    into = Copy2D(width=10, height=4)
    into.src = End2D(0, 0, HOST, ctypes.addressof(matrix), 0, None, 10)
    into.dst = End2D(0, 0, DEVICE, None, base.value, None, pitch.value)
    cuda.call("cuMemcpy2D_v2", byref(into))
    part = ctypes.create_string_buffer(6)
    out = Copy2D(width=3, height=2)
    out.src = End2D(2, 1, DEVICE, None, base.value, None, pitch.value)
    out.dst = End2D(0, 0, HOST, ctypes.addressof(part), 0, None, 3)
    cuda.call("cuMemcpy2DAsync_v2", byref(out), None)
    cube = ctypes.create_string_buffer(bytes(range(27)), 27)
    where = address_of(cuda, 8)
    corner = Copy3D(width=2, height=2, depth=2)
    corner.src = End3D(1, 1, 1, 0, HOST, ctypes.addressof(cube), 0, None, None, 3, 3)
    corner.dst = End3D(0, 0, 0, 0, DEVICE, None, where.value, None, None, 2, 2)
    cuda.call("cuMemcpy3D_v2", byref(corner))
    cuda.call("cuCtxSynchronize")
    out.dst.type = 3
    array = cuda.rc("cuMemcpy2D_v2", byref(out))
    say(pitch=pitch.value, part=list(part.raw), corner=list(read(cuda, where.value, 8)), array=array)


def places() -> None:
    """What an address is; and that nothing of it stays mapped when it is freed, or its context ends."""
    cuda = Cuda()
    device, managed, pinned = address_of(cuda, 5000), c_uint64(), c_void_p()
    cuda.call("cuMemAllocManaged", byref(managed), c_size_t(4096), 1)
    cuda.call("cuMemHostAlloc", byref(pinned), c_size_t(4096), 0)
    kinds = {}
    for name, address in (
        ("device", device.value),
        ("managed", managed.value),
        ("pinned", pinned.value or 0),
    ):
        kind, is_managed = c_uint(), ctypes.c_bool()
        cuda.call("cuPointerGetAttribute", byref(kind), 2, c_uint64(address + 100))
        cuda.call("cuPointerGetAttribute", byref(is_managed), 8, c_uint64(address + 100))
        kinds[name] = (kind.value, is_managed.value)
    start, size = c_uint64(), c_size_t()
    cuda.call("cuMemGetAddressRange_v2", byref(start), byref(size), c_uint64(device.value + 100))
    unknown = cuda.rc("cuPointerGetAttribute", byref(start), 2, c_uint64(id(cuda)))
    ctypes.memset(managed.value, 5, 16)
    seen = read(cuda, managed.value, 16) == b"\5" * 16
    before = is_mapped(device.value), is_mapped(managed.value)
    cuda.call("cuMemFree_v2", device)
    freed = is_mapped(device.value)
    cuda.call("cuCtxDestroy_v2", cuda.context)
    after = is_mapped(managed.value)
    say(kinds=kinds, range=(start.value == device.value, size.value), unknown=unknown, seen=seen,
        mapped=(*before, freed, after))  # fmt: skip


def is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= address < high:
            return True
    return False


def pools() -> None:
    cuda = Cuda()
    pool, address, used = c_void_p(), c_uint64(), c_uint64()
    cuda.call("cuDeviceGetDefaultMemPool", byref(pool), 0)
    cuda.call("cuMemAllocFromPoolAsync", byref(address), c_size_t(1 << 20), pool, None)
    cuda.call("cuMemPoolGetAttribute", pool, 7, byref(used))
    full = used.value
    cuda.call("cuMemFreeAsync", address, None)
    cuda.call("cuMemPoolGetAttribute", pool, 7, byref(used))
    empty = used.value
    cuda.call("cuMemPoolGetAttribute", pool, 8, byref(used))
    say(full=full, empty=empty, high=used.value)


def registered() -> None:
    cuda = Cuda()
    memory = ctypes.create_string_buffer(4096)
    rcs = [cuda.rc("cuMemHostRegister_v2", memory, c_size_t(4096), 0) for _ in range(2)]
    rcs += [cuda.rc("cuMemHostUnregister", memory) for _ in range(2)]
    say(rcs=rcs)


# ---- devices, streams, graphs ----


def attributes() -> None:
    cuda = Cuda()
    value, seen = c_int(), {}
    for attribute in (1, 10, 16, 38, 39, 75, 76, 81, 97, 106, 115, 120):
        cuda.call("cuDeviceGetAttribute", byref(value), attribute, 0)
        seen[str(attribute)] = value.value
    seen["unknown"] = cuda.rc("cuDeviceGetAttribute", byref(value), 1000, 0)
    say(**seen)


def called_back() -> None:
    """A stream's callback, and the end of an object that a graph holds on to."""
    cuda = Cuda()
    stream, got = cuda.stream(NON_BLOCKING), []
    callback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)(lambda s, rc, user: got.append((rc, user)))
    ended = ctypes.CFUNCTYPE(None, c_void_p)(lambda user: got.append(("ended", user)))
    cuda.launch(1_000_000, stream)
    cuda.call("cuStreamAddCallback", stream, callback, c_void_p(7), 0)
    cuda.call("cuStreamSynchronize", stream)
    graph, executable, one = c_void_p(), c_void_p(), c_void_p()
    cuda.call("cuGraphCreate", byref(graph), 0)
    cuda.call("cuUserObjectCreate", byref(one), c_void_p(8), ended, 1, 1)
    cuda.call("cuGraphRetainUserObject", graph, one, 1, 1)
    cuda.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    cuda.call("cuGraphDestroy", graph)
    alive = len(got)
    cuda.call("cuGraphExecDestroy", executable)
    say(got=got, alive=alive)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
