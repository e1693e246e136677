# SPDX-License-Identifier: Apache-2.0
"""Device numbers of NVIDIA's driver, and which of its GPUs is which.

Three numbers for one GPU: its *minor* (/dev/nvidiaN), its *instance* in the resource manager, which is what a program
names when it allocates a device, and our *slot*. /proc/driver/nvidia gives minor and UUID; the instance is asked of
the driver through a client of our own. Usually it is the minor, and where nobody can be asked that is assumed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairsched.bpf.abi import MAX_GPUS, Node

NVIDIA_MAJOR = 195
_NAMES = {
    "nvidia": Node.GPU,
    "nvidia-frontend": Node.GPU,
    "nvidiactl": Node.GPU,
    "nvidia-modeset": Node.GPU,
    "nvidia-uvm": Node.UVM,
    "nvidia-caps": Node.CAPS,
    "nvidia-caps-imex-channels": Node.OTHER,
}
"""In /proc/devices. Up to driver 535 the whole major 195 is nvidia-frontend's."""


@dataclass(frozen=True)
class Card:
    """A GPU the driver has."""

    minor: int
    uuid: str | None
    pci: str
    """As the driver names its directory: 0000:65:00.0."""


@dataclass(frozen=True)
class Instances:
    """Slot by instance."""

    slot_of: Mapping[int, int]
    is_assumed: bool
    """Nobody could be asked: the instance is taken to be the minor."""
    reason: str = ""


def parse_majors(text: str) -> dict[int, Node]:
    """What the minors of each of the driver's majors are, from /proc/devices."""
    found: dict[int, Node] = {}
    section, _, _ = text.partition("Block devices:")
    for line in section.splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit() and name in _NAMES:
            found[int(number)] = _NAMES[name]
    return found


def parse_information(text: str) -> tuple[int | None, str | None]:
    """(minor, UUID) from /proc/driver/nvidia/gpus/*/information; None for what is not there."""
    minor = re.search(r"^Device Minor:\s*(\d+)\s*$", text, re.MULTILINE)
    uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]{36})\s*$", text, re.MULTILINE)
    return int(minor[1]) if minor else None, uuid[1] if uuid else None


def read_majors(proc: Path = Path("/proc")) -> dict[int, Node]:
    """Of this kernel; empty when the driver is not loaded."""
    try:
        return parse_majors((proc / "devices").read_text())
    except OSError:
        return {}


def read_cards(proc: Path = Path("/proc")) -> list[Card]:
    """The driver's GPUs by minor. One it says no minor of is left out."""
    cards = []
    try:
        directories = sorted((proc / "driver/nvidia/gpus").iterdir())
    except OSError:
        return []
    for directory in directories:
        try:
            minor, uuid = parse_information((directory / "information").read_text())
        except OSError:
            continue
        if minor is not None:
            cards.append(Card(minor, uuid, directory.name))
    return sorted(cards, key=lambda card: card.minor)


def choose_slots(
    cards: Iterable[Card], slot_by_uuid: Mapping[str, int], minor_by_instance: Mapping[int, int] | None
) -> dict[int, int]:
    """Slot by instance (pure); an instance whose GPU has no slot is left out."""
    slot_by_minor = {
        card.minor: slot_by_uuid[card.uuid]
        for card in cards
        if card.uuid is not None and card.uuid in slot_by_uuid
    }
    if minor_by_instance is None:
        minor_by_instance = {minor: minor for minor in slot_by_minor}
    return {
        instance: slot_by_minor[minor]
        for instance, minor in minor_by_instance.items()
        if minor in slot_by_minor and 0 <= instance < MAX_GPUS
    }


def find_instances(
    slot_by_uuid: Mapping[str, int], proc: Path = Path("/proc"), dev: Path = Path("/dev")
) -> Instances:
    """Slot by instance on this host. Where there is no driver but slots, instance and slot are the same."""
    cards = read_cards(proc)
    if not cards:
        slots = {slot: slot for slot in slot_by_uuid.values()}
        return Instances(slots, True, "the driver names no GPU")
    try:
        minors: dict[int, int] | None = ask_instances(dev / "nvidiactl")
        reason = ""
    except OSError as error:
        minors, reason = None, f"the driver cannot be asked: {error.strerror or error}"
    return Instances(choose_slots(cards, slot_by_uuid, minors), minors is None, reason)


def plain_nodes(directory: Path) -> dict[Path, Node]:
    """The files that stand for device nodes of a simulated GPU."""
    return {
        path: Node.UVM if path.name.startswith("nvidia-uvm") else Node.GPU
        for path in sorted(directory.iterdir())
        if path.name.startswith("nvidia")
    }


# ---- asking the driver ----

_CARD_INFO = struct.Struct("=B3x12xI36xI12x")
"""nv_ioctl_card_info_t: valid, gpu_id at 16, minor_number at 56; 72 bytes."""
_MAX_CARDS = 32
_ESC_CARD_INFO, _ESC_FREE, _ESC_CONTROL, _ESC_ALLOC = 200, 0x29, 0x2A, 0x2B
_ALLOC = struct.Struct("=IIIIQII")
"""NVOS21_PARAMETERS"""
_FREE = struct.Struct("=IIII")
_CONTROL = struct.Struct("=IIIIQII")
_GET_ID_INFO_V2 = 0x205
_ID_INFO = struct.Struct("=8I")
"""NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS: gpuId, gpuFlags, deviceInstance, ..."""
_ROOT_CLIENT = 0x41


def _request(number: int, size: int) -> int:
    return 3 << 30 | size << 16 | ord("F") << 8 | number


def _call(fd: int, number: int, layout: struct.Struct, *values: int) -> tuple[int, ...]:
    """A resource manager call; the status is the last value. Raises OSError for that, too."""
    buffer = bytearray(layout.pack(*values))
    fcntl.ioctl(fd, _request(number, len(buffer)), buffer)
    answer = layout.unpack(buffer)
    if answer[-1]:
        raise OSError(errno.EIO, f"call {number:#x} has status {answer[-1]:#x}")
    return answer


def parse_card_info(data: bytes) -> dict[int, int]:
    """Minor by gpu_id."""
    rows = _CARD_INFO.iter_unpack(data)
    return {gpu_id: minor for is_valid, gpu_id, minor in rows if is_valid}


def ask_instances(node: Path) -> dict[int, int]:
    """Minor by instance. Raises OSError."""
    fd = os.open(node, os.O_RDWR | os.O_CLOEXEC)
    try:
        cards = bytearray(_CARD_INFO.size * _MAX_CARDS)
        fcntl.ioctl(fd, _request(_ESC_CARD_INFO, len(cards)), cards)
        client = _call(fd, _ESC_ALLOC, _ALLOC, 0, 0, 0, _ROOT_CLIENT, 0, 0, 0)[2]
        try:
            return {
                _ask_instance(fd, client, gpu_id): minor
                for gpu_id, minor in parse_card_info(bytes(cards)).items()
            }
        finally:
            _call(fd, _ESC_FREE, _FREE, client, 0, client, 0)
    finally:
        os.close(fd)


def _ask_instance(fd: int, client: int, gpu_id: int) -> int:
    params = ctypes.create_string_buffer(_ID_INFO.pack(gpu_id, 0, 0, 0, 0, 0, 0, 0), _ID_INFO.size)
    address = ctypes.addressof(params)
    _call(fd, _ESC_CONTROL, _CONTROL, client, client, _GET_ID_INFO_V2, 0, address, _ID_INFO.size, 0)
    return int(_ID_INFO.unpack(params.raw)[2])
