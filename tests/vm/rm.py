# SPDX-License-Identifier: Apache-2.0
"""The driver's calls, made the way libcuda makes them; and the test driver, loaded and asked for its books.

Layouts are the real driver's. A call that the driver took (errno 0) and refused raises RmError with its status; errno
raises OSError.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from ctypes import c_int32, c_uint8, c_uint32, c_uint64
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

OK = 0x00
DUPLICATE_NAME, INVALID_ADDRESS, INVALID_ARGUMENT, INVALID_CLASS = 0x19, 0x1E, 0x1F, 0x22
INVALID_CLIENT, INVALID_DEVICE, INVALID_HANDLE, INVALID_PARENT = 0x23, 0x26, 0x33, 0x36
INVALID_PARAMS, NO_MEMORY, NOT_SUPPORTED, NOT_FOUND = 0x3A, 0x51, 0x56, 0x57

ALLOC_MEMORY, FREE, CONTROL, ALLOC, DUP_OBJECT, VID_HEAP = 0x27, 0x29, 0x2A, 0x2B, 0x34, 0x4A
CARD_INFO, REGISTER_FD, CHECK_VERSION, XFER = 200, 201, 210, 211

ROOT_CLIENT, DEVICE, SUBDEVICE, TSG, MEMORY, SYSMEM = 0x41, 0x80, 0x2080, 0xA06C, 0x40, 0x3E
CHANNEL, COMPUTE = 0xC56F, 0xC6C0
GET_PIDS, GET_PID_INFO, UTIL_SAMPLES = 0x2080018D, 0x2080018E, 0x20802096
NO_PID = 0xFFFFFFFF

libc = ctypes.CDLL(None, use_errno=True)


class Abi(NamedTuple):
    """What differs between branches of the driver."""

    driver: int
    nvos64_bytes: int
    memory_params_bytes: int
    channel_params_bytes: int
    engines: int
    record_bytes: int

    @property
    def sample_bytes(self) -> int:
        return 8 + self.engines * self.record_bytes


ABI_525 = Abi(525, 40, 120, 304, 4, 116)
ABI_535 = Abi(535, 48, 120, 360, 4, 116)
ABI_550 = Abi(550, 48, 128, 360, 6, 116)
ABI_570 = Abi(570, 48, 128, 368, 6, 128)
ABI_595 = Abi(595, 48, 128, 368, 6, 128)
ABIS = {abi.driver: abi for abi in (ABI_525, ABI_535, ABI_550, ABI_570, ABI_595)}


class RmError(Exception):
    """errno 0, and a status that is not NV_OK."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status

    def __str__(self) -> str:
        return f"status {self.status:#x}"


def _struct(name: str, *fields: tuple[str, Any]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


_HEAD = (("root", c_uint32), ("parent", c_uint32), ("new", c_uint32), ("class_", c_uint32))
Nvos00 = _struct("Nvos00", ("root", c_uint32), ("parent", c_uint32), ("old", c_uint32), ("status", c_uint32))
Nvos21 = _struct("Nvos21", *_HEAD, ("params", c_uint64), ("params_size", c_uint32), ("status", c_uint32))
Nvos64 = _struct(
    "Nvos64",
    *(*_HEAD, ("params", c_uint64), ("rights", c_uint64), ("params_size", c_uint32)),
    *(("flags", c_uint32), ("status", c_uint32), ("pad", c_uint32)),
)
Nvos64Old = _struct(
    "Nvos64Old",
    *_HEAD,
    *(("params", c_uint64), ("rights", c_uint64), ("flags", c_uint32), ("status", c_uint32)),
)
Nvos54 = _struct(
    "Nvos54",
    *(("client", c_uint32), ("object", c_uint32), ("cmd", c_uint32), ("flags", c_uint32)),
    *(("params", c_uint64), ("params_size", c_uint32), ("status", c_uint32)),
)
Nvos55 = _struct(
    "Nvos55",
    *(("client", c_uint32), ("parent", c_uint32), ("new", c_uint32), ("source_client", c_uint32)),
    *(("source", c_uint32), ("flags", c_uint32), ("status", c_uint32)),
)
Nvos32 = _struct(
    "Nvos32",
    *(("root", c_uint32), ("parent", c_uint32), ("function", c_uint32), ("va_space", c_uint32)),
    *(("pad", c_uint32), ("status", c_uint32), ("total", c_uint64), ("free", c_uint64)),
    *(("owner", c_uint32), ("memory", c_uint32), ("type", c_uint32), ("flags", c_uint32), ("attr", c_uint32)),
    *(("pad2", c_uint32 * 7), ("size", c_uint64), ("alignment", c_uint64), ("offset", c_uint64)),
    *(("limit", c_uint64), ("rest", c_uint8 * 64)),
)
Nvos02 = _struct(
    "Nvos02",
    *(*_HEAD, ("flags", c_uint32), ("pad", c_uint32), ("memory", c_uint64), ("limit", c_uint64)),
    *(("status", c_uint32), ("pad2", c_uint32), ("fd", c_int32), ("pad3", c_int32)),
)
XferCmd = _struct("XferCmd", ("cmd", c_uint32), ("size", c_uint32), ("address", c_uint64))

SYSMEM_ATTR = 1 << 25
"""NVOS32_ATTR_LOCATION_PCI."""


def command(nr: int, size: int) -> int:
    """_IOWR('F', nr, size)."""
    return 3 << 30 | size << 16 | ord("F") << 8 | nr


class Rm:
    """An open control file, and what is done through it."""

    OPEN: ClassVar[set[Rm]] = set()
    """Those of this process: the module cannot go while one is open."""

    def __init__(self, abi: Abi = ABI_595, xfer: bool = False, form: str = "nvos64") -> None:
        self.abi, self.xfer, self.form = abi, xfer, form
        self.fd = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
        self.gpu_fds: dict[int, int] = {}
        self.gpu_by_device: dict[tuple[int, int], int] = {}
        self.OPEN.add(self)

    def do(self, name: str, *args: Any, **named: Any) -> Any:
        """The method of that name: what an Actor offers, too."""
        return getattr(self, name)(*args, **named)

    def close(self) -> None:
        for fd in (*self.gpu_fds.values(), self.fd):
            os.close(fd)
        self.gpu_fds, self.fd = {}, -1
        self.OPEN.remove(self)

    def ioctl_raw(self, fd: int, cmd: int, address: int) -> int:
        """The bare call: errno, or 0."""
        ctypes.set_errno(0)
        done = libc.ioctl(fd, ctypes.c_ulong(cmd), ctypes.c_void_p(address))
        return ctypes.get_errno() if done < 0 else 0

    def ioctl(self, nr: int, buffer: Any, fd: int | None = None) -> None:
        """One call with a ctypes object as its argument, written back into it."""
        target, size = self.fd if fd is None else fd, ctypes.sizeof(buffer)
        if self.xfer:
            outer = XferCmd(nr, size, ctypes.addressof(buffer))
            error = self.ioctl_raw(target, command(XFER, 16), ctypes.addressof(outer))
        else:
            error = self.ioctl_raw(target, command(nr, size), ctypes.addressof(buffer))
        if error:
            raise OSError(error, os.strerror(error))
        status = getattr(buffer, "status", 0)
        if status:
            raise RmError(status)

    def alloc(
        self, client: int, parent: int, cls: int, handle: int = 0, params: Any = None, form: str | None = None
    ) -> int:
        """NV_ESC_RM_ALLOC; ``params`` is a ctypes object, written back. The new handle."""
        address = ctypes.addressof(params) if params is not None else 0
        size = ctypes.sizeof(params) if params is not None else 0
        call: Any
        if (form or self.form) == "nvos21":
            call = Nvos21(client, parent, handle, cls, address, size)
        elif self.abi.nvos64_bytes == 40:
            call = Nvos64Old(client, parent, handle, cls, address)
        else:
            call = Nvos64(client, parent, handle, cls, address, 0, size)
        self.ioctl(ALLOC, call)
        return int(call.new)

    def client(self, handle: int = 0) -> int:
        return self.alloc(0, 0, ROOT_CLIENT, handle)

    def device(self, client: int, gpu: int, handle: int = 0) -> int:
        device = self.alloc(client, client, DEVICE, handle, (c_uint32 * 14)(gpu))
        self.gpu_by_device[client, device] = gpu
        return device

    def subdevice(self, client: int, device: int, handle: int = 0) -> int:
        return self.alloc(client, device, SUBDEVICE, handle, (c_uint32 * 1)())

    def tsg(self, client: int, device: int, handle: int = 0) -> int:
        return self.alloc(client, device, TSG, handle, (c_uint32 * 5)())

    def channel(self, client: int, parent: int, handle: int = 0) -> int:
        return self.alloc(client, parent, CHANNEL, handle, (c_uint8 * self.abi.channel_params_bytes)())

    def compute(self, client: int, channel: int, cls: int = COMPUTE, handle: int = 0) -> int:
        return self.alloc(client, channel, cls, handle)

    def memory(self, client: int, device: int, size: int, route: str = "alloc", handle: int = 0) -> int:
        """VRAM: by ALLOC of class 0x40, VID_HEAP_CONTROL function 2 or ALLOC_MEMORY."""
        if route == "alloc":
            return self._memory_object(client, device, MEMORY, size, handle)
        if route == "heap":
            return self._heap(client, device, size, handle, 0)
        call = Nvos02(client, device, handle, MEMORY, 0, 0, 0, size - 1)
        self.ioctl(ALLOC_MEMORY, call, self._gpu_fd(self.gpu_by_device.get((client, device), 0)))
        return int(call.new)

    def sysmem(self, client: int, device: int, size: int, route: str = "alloc", handle: int = 0) -> int:
        """Memory of the host: in nobody's VRAM."""
        if route == "alloc":
            return self._memory_object(client, device, SYSMEM, size, handle)
        return self._heap(client, device, size, handle, SYSMEM_ATTR)

    def free(self, client: int, handle: int, parent: int = 0) -> None:
        self.ioctl(FREE, Nvos00(client, parent, handle))

    def heap_free(self, client: int, device: int, handle: int) -> None:
        self.ioctl(VID_HEAP, Nvos32(root=client, parent=device, function=3, memory=handle))

    def dup(self, client: int, parent: int, source_client: int, source: int, handle: int = 0) -> int:
        call = Nvos55(client, parent, handle, source_client, source)
        self.ioctl(DUP_OBJECT, call)
        return int(call.new)

    def control(self, client: int, target: int, cmd: int, params: bytes) -> bytes:
        buffer = (c_uint8 * len(params)).from_buffer_copy(params)
        call = Nvos54(client, target, cmd, 0, ctypes.addressof(buffer) if params else 0, len(params))
        self.ioctl(CONTROL, call)
        return bytes(buffer)

    def get_pids(self, client: int, subdevice: int, cls: int = SUBDEVICE) -> list[int]:
        """The processes that have an object of that class on the GPU, as the driver names them to us."""
        words = (c_uint32 * 953)(0, cls)
        answer = self.control(client, subdevice, GET_PIDS, bytes(words))
        words = (c_uint32 * 953).from_buffer_copy(answer)
        return list(words[3 : 3 + words[2]])

    def get_pid_info(self, client: int, subdevice: int, pids: Iterable[int]) -> dict[int, int]:
        """VRAM bytes by the pid as the answer has it."""
        asked = list(pids)
        buffer = bytearray(14408)
        buffer[0:4] = len(asked).to_bytes(4, "little")
        for i, pid in enumerate(asked):
            buffer[8 + 72 * i : 12 + 72 * i] = pid.to_bytes(4, "little")
        answer = self.control(client, subdevice, GET_PID_INFO, bytes(buffer))
        items = [answer[8 + 72 * i : 80 + 72 * i] for i in range(len(asked))]
        return {int.from_bytes(i[0:4], "little"): int.from_bytes(i[16:24], "little") for i in items}

    def util_samples(self, client: int, subdevice: int) -> list[tuple[int, ...]]:
        """One tuple per sample: the pid each engine's record names (NO_PID: nobody)."""
        abi = self.abi
        size = 72 * abi.sample_bytes
        asked = bytes(4) + size.to_bytes(4, "little") + bytes(8 + size)
        answer = self.control(client, subdevice, UTIL_SAMPLES, asked)
        samples = []
        for i in range(int.from_bytes(answer[8:12], "little")):
            at = [16 + i * abi.sample_bytes + 8 + n * abi.record_bytes + 8 for n in range(abi.engines)]
            samples.append(tuple(int.from_bytes(answer[a : a + 4], "little") for a in at))
        return samples

    def _memory_object(self, client: int, device: int, cls: int, size: int, handle: int) -> int:
        params = (c_uint64 * (self.abi.memory_params_bytes // 8))()
        params[8] = size
        return self.alloc(client, device, cls, handle, params)

    def _heap(self, client: int, device: int, size: int, handle: int, attr: int) -> int:
        call = Nvos32(root=client, parent=device, function=2, memory=handle, attr=attr, size=size)
        self.ioctl(VID_HEAP, call)
        return int(call.memory)

    def _gpu_fd(self, minor: int) -> int:
        """The GPU's own file, tied to our control file."""
        if minor not in self.gpu_fds:
            fd = os.open(f"/dev/nvidia{minor}", os.O_RDWR | os.O_CLOEXEC)
            self.gpu_fds[minor] = fd
            self.ioctl(REGISTER_FD, c_int32(self.fd), fd)
        return self.gpu_fds[minor]


class Use(NamedTuple):
    """What one client has on one GPU."""

    client: int
    pid: int
    cgroup: int
    gpu: int
    contexts: int
    vram: int


class Calls(NamedTuple):
    ok: int
    refused: int
    errno: int


class Books(NamedTuple):
    """What the driver says of itself."""

    clients: dict[int, tuple[int, int]]
    """Client -> (pid, cgroup id) of who made it."""
    uses: list[Use]
    held: dict[int, int]
    """VRAM by GPU that any handle keeps, duplicates included."""
    calls: dict[int, Calls]

    def select(self, **keys: int) -> list[Use]:
        return [use for use in self.uses if all(getattr(use, name) == key for name, key in keys.items())]

    def contexts(self, **keys: int) -> int:
        """Summed over what matches: ``books.contexts(cgroup=7, gpu=0)``."""
        return sum(use.contexts for use in self.select(**keys))

    def vram(self, **keys: int) -> int:
        return sum(use.vram for use in self.select(**keys))


def parse_books(text: str) -> Books:
    books = Books({}, [], {}, {})
    for line in text.splitlines():
        words = line.split()
        kind = words[0] if "=" not in words[0] else "client"
        value = dict(word.split("=") for word in words if "=" in word)
        if kind == "client":
            books.clients[int(value["client"], 16)] = (int(value["pid"]), int(value["cgroup"]))
        elif kind == "use":
            rest = (int(value[name]) for name in Use._fields[1:])
            books.uses.append(Use(int(value["client"], 16), *rest))
        elif kind == "total":
            books.held[int(value["gpu"])] = int(value["held"])
        elif kind == "calls":
            counts = (int(value[name]) for name in Calls._fields)
            books.calls[int(value["nr"], 16)] = Calls(*counts)
    return books


class Driver:
    """The test driver, loaded; the nodes in /dev."""

    BOOKS = Path("/proc/driver/nvidia/emulated")
    PARAMETERS = Path("/sys/module/nvidia/parameters")

    def __init__(self, variant: str = "595", **parameters: object) -> None:
        module = Path(os.environ["FAIRSCHED_VM_MODULES"], variant, "nvidia.ko")
        words = " ".join(f"{name}={value}" for name, value in parameters.items())
        fd = os.open(module, os.O_RDONLY)
        try:
            _check(libc.syscall(313, fd, words.encode(), 0), f"finit_module({module}, {words!r})")
        finally:
            os.close(fd)
        self.is_loaded = True
        self.variant = variant
        self.abi = ABIS[int((self.PARAMETERS / "abi").read_text())]
        self.gpus = int((self.PARAMETERS / "gpus").read_text())
        majors = [line.split() for line in Path("/proc/devices").read_text().splitlines()]
        uvm = next(int(words[0]) for words in majors if words[1:] == ["nvidia-uvm"])
        self.nodes = {Path(f"/dev/nvidia{n}"): (195, n) for n in range(self.gpus)}
        self.nodes[Path("/dev/nvidiactl")] = (195, 255)
        self.nodes[Path("/dev/nvidia-uvm")] = (uvm, 0)
        self.nodes[Path("/dev/nvidia-uvm-tools")] = (uvm, 1)
        for node, (major, minor) in self.nodes.items():
            node.unlink(missing_ok=True)
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            node.chmod(0o666)

    def books(self) -> Books:
        return parse_books(self.BOOKS.read_text())

    def set(self, name: str, value: object) -> None:
        (self.PARAMETERS / name).write_text(f"{value}")

    def unload(self) -> None:
        """Closes what this process has open of it. Idempotent. Raises OSError while another process has a file open."""
        if not self.is_loaded:
            return
        for one in list(Rm.OPEN):
            one.close()
        _check(libc.syscall(176, b"nvidia", os.O_NONBLOCK), "delete_module(nvidia)")
        self.is_loaded = False
        for node in self.nodes:
            node.unlink(missing_ok=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
