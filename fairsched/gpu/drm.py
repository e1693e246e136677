# SPDX-License-Identifier: Apache-2.0
"""Lists who holds AMD's and Intel's GPUs, as the kernel's DRM drivers amdgpu, i915 and xe tell. Looks only.

Problem: these GPUs have no NVML. Who uses them is said per descriptor (fdinfo.py), and one client may be open in many:
dup'ed, inherited by a child, or handed over a socket, as a login manager hands the display to a compositor. To add up
descriptors counts memory several times.

Approach: cards are found in /sys/class/drm; where there is none of these drivers, nothing else is read. Then each
descriptor of each process is looked at, and the fdinfo of those that are DRM devices is read. By device number, so a
name that a container chose does not matter, nor text that a process can put into another kind of fdinfo. A client is
its device and its id, and counts once for each process. One that several processes have open is nobody's alone: each
of them has it in ``shared_with``, its memory is the oldest one's here, and no more can be said.

The device is the one that fdinfo names; where it names none, that of the device file.

Two readings give how busy each engine was by each process: nanoseconds by the wall clock between them, or cycles by the
GPU's clock, divided by the number of engines of that kind. A driver may tell less than it did before, and then the
larger figure stands until it is passed (the kernel's document says so).

nvidia-drm is not read: NVML lists its processes.

Errors: none; what cannot be read is left out, processes that end meanwhile too. Without privilege only the caller's own
processes are seen.

Source: Documentation/gpu/drm-usage-stats.rst; Documentation/gpu/amdgpu (mem_info_vram_total, mem_info_vram_used,
gpu_busy_percent); Documentation/admin-guide/devices.txt (226 is DRM; minors below 64 are the display's); uevent of a
PCI device: DRIVER, PCI_ID, PCI_SLOT_NAME. xe and i915 document no file of sysfs for the memory of a card.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from fairsched.base.process import ProcessId
from fairsched.gpu.fdinfo import Client, Engine, parse

DRIVERS = {"amdgpu": "amd", "i915": "intel", "xe": "intel"}
"""Vendors by driver."""
_MAJOR = 226
_RENDER = 128
"""First minor of the files that cannot drive a display."""
_CARD = re.compile(r"card\d+")
_NODE = re.compile(r"(?:card|renderD)\d+")
_BYTES = 16 << 10
Key = tuple[str, int]
"""A client: its card's PCI address, its id."""


@dataclass(frozen=True)
class Card:
    """One GPU."""

    name: str
    """card1."""
    driver: str
    pci: str
    pci_id: str | None = None
    """1002:73BF."""
    vram_total_bytes: int | None = None
    vram_used_bytes: int | None = None
    busy_ratio: float | None = None
    """As amdgpu says."""

    @property
    def vendor(self) -> str:
        return DRIVERS[self.driver]


@dataclass(frozen=True)
class Use:
    """One process on one card."""

    pid: int
    card: Card
    vram_bytes: int | None
    """Of its clients, less those that an older process has, too; None = not known."""
    regions: Mapping[str, int] = field(default_factory=dict)
    """Bytes by region, the host's too."""
    engine_s: float | None = None
    """Of all engines, since its clients were opened; None: the driver tells cycles, or nothing."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """Part of the time since the reading before, by engine; empty after the first."""
    shared_with: tuple[int, ...] = ()
    has_display: bool = False
    """It has the file open that drives a display."""


@dataclass(frozen=True)
class _Opened:
    client: Client
    card: Card
    pid: int
    fd: int
    minor: int


def minor_of(path: str) -> int | None:
    """Of a descriptor's link in /proc; None: it is no DRM device."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISCHR(found.st_mode) or os.major(found.st_rdev) != _MAJOR:
        return None
    return os.minor(found.st_rdev)


class Drm:
    """Call :meth:`cards` and :meth:`uses`. ``minor_of``: for tests, which have no device files."""

    def __init__(
        self,
        proc: str = "/proc",
        sys: str = "/sys",
        minor_of: Callable[[str], int | None] = minor_of,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._directory = proc, f"{sys}/class/drm"
        self._minor_of, self._clock_s = minor_of, clock_s
        self._engines: dict[Key, Mapping[str, Engine]] = {}
        self._at_s: float | None = None

    def cards(self) -> tuple[Card, ...]:
        """Those of our drivers, by name."""
        names = sorted((name for name in _names(self._directory) if _CARD.fullmatch(name)), key=_natural)
        return tuple(card for name in names if (card := self._card(name)) is not None)

    def uses(self, cards: tuple[Card, ...] | None = None) -> tuple[Use, ...]:
        """Who has which card open, by process; ``cards``: an answer of :meth:`cards`."""
        cards = self.cards() if cards is None else cards
        if not cards:
            return ()
        now_s, opened = self._clock_s(), list(self._opened(cards))
        clients: dict[Key, list[_Opened]] = {}
        for one in opened:
            if one.client.client_id is not None:
                clients.setdefault((one.card.pci, one.client.client_id), []).append(one)
        busy = self._busy(clients, now_s)
        pids = {one.pid for one in opened}
        ages = {pid: 0 if (id := ProcessId.of(pid, self._proc)) is None else id.start_ticks for pid in pids}
        owners = {
            key: min({one.pid for one in ones}, key=lambda pid: (ages[pid], pid))
            for key, ones in clients.items()
        }
        by_process: dict[tuple[str, int], list[_Opened]] = {}
        for one in opened:
            by_process.setdefault((one.card.pci, one.pid), []).append(one)
        return tuple(_use(ones, clients, owners, busy) for _, ones in sorted(by_process.items()))

    def _card(self, name: str) -> Card | None:
        device = f"{self._directory}/{name}/device"
        said = dict(line.partition("=")[::2] for line in _text(f"{device}/uevent").splitlines())
        driver, pci = said.get("DRIVER", ""), said.get("PCI_SLOT_NAME", "")
        if driver not in DRIVERS or not pci:
            return None
        busy = _int(f"{device}/gpu_busy_percent")
        return Card(
            name,
            driver,
            pci,
            said.get("PCI_ID"),
            _int(f"{device}/mem_info_vram_total"),
            _int(f"{device}/mem_info_vram_used"),
            None if busy is None else busy / 100,
        )

    def _opened(self, cards: tuple[Card, ...]) -> Iterator[_Opened]:
        by_pci = {card.pci: card for card in cards}
        by_minor = {minor: card for minor, pci in self._minors() if (card := by_pci.get(pci)) is not None}
        for name in _names(self._proc):
            if not name.isdecimal():
                continue
            directory = f"{self._proc}/{name}"
            for fd in _names(f"{directory}/fd"):
                minor = self._minor_of(f"{directory}/fd/{fd}")
                client = None if minor is None else parse(_bytes(f"{directory}/fdinfo/{fd}"))
                if minor is None or client is None or client.driver not in DRIVERS:
                    continue
                card = by_minor.get(minor) if client.pdev is None else by_pci.get(client.pdev)
                if card is not None and card.driver == client.driver:
                    yield _Opened(client, card, int(name), int(fd), minor)

    def _minors(self) -> Iterator[tuple[int, str]]:
        for name in _names(self._directory):
            if _NODE.fullmatch(name):
                minor = _text(f"{self._directory}/{name}/dev").strip().partition(":")[2]
                for line in _text(f"{self._directory}/{name}/device/uevent").splitlines():
                    if line.startswith("PCI_SLOT_NAME=") and minor.isdecimal():
                        yield int(minor), line.partition("=")[2]

    def _busy(self, clients: Mapping[Key, list[_Opened]], now_s: float) -> dict[Key, dict[str, float]]:
        """By client and engine, since the reading before."""
        wall_s = None if self._at_s is None else now_s - self._at_s
        found: dict[Key, dict[str, float]] = {}
        engines: dict[Key, Mapping[str, Engine]] = {}
        for key, ones in clients.items():
            before = self._engines.get(key, {})
            engines[key] = {
                name: _later(before.get(name), engine) for name, engine in ones[0].client.engines.items()
            }
            ratios = {name: busy_ratio(before.get(name), now, wall_s) for name, now in engines[key].items()}
            found[key] = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        self._engines, self._at_s = engines, now_s
        return found


def busy_ratio(before: Engine | None, now: Engine, wall_s: float | None) -> float | None:
    """Part of the time between two readings in which a client had engines of one kind busy; None = not known."""
    if before is None:
        return None
    if now.busy_ns is not None and before.busy_ns is not None and wall_s is not None and wall_s > 0:
        ratio = (now.busy_ns - before.busy_ns) / 1e9 / wall_s
    elif None not in (now.cycles, before.cycles, now.total_cycles, before.total_cycles):
        passed = (now.total_cycles or 0) - (before.total_cycles or 0)
        if passed <= 0:
            return None
        ratio = ((now.cycles or 0) - (before.cycles or 0)) / passed
    else:
        return None
    return min(1.0, max(0.0, ratio / now.capacity))


def _later(before: Engine | None, now: Engine) -> Engine:
    """With the larger of both figures."""
    if before is None:
        return now
    return Engine(
        _larger(before.busy_ns, now.busy_ns),
        _larger(before.cycles, now.cycles),
        _larger(before.total_cycles, now.total_cycles),
        now.capacity,
    )


def _larger(before: int | None, now: int | None) -> int | None:
    return now if before is None or now is None else max(before, now)


def _use(
    ones: list[_Opened],
    clients: Mapping[Key, list[_Opened]],
    owners: Mapping[Key, int],
    busy: Mapping[Key, Mapping[str, float]],
) -> Use:
    pid, card = ones[0].pid, ones[0].card
    named = {(card.pci, one.client.client_id): one.client for one in ones if one.client.client_id is not None}
    nameless = [one.client for one in ones if one.client.client_id is None]
    others = {one.pid for key in named for one in clients[key]} - {pid}
    mine = [client for key, client in named.items() if owners[key] == pid] + nameless
    sizes = [client.vram_bytes for client in mine]
    known = [size for size in sizes if size is not None]
    # descriptors of clients without an id may be one client's: then how much they have is not known
    is_known = len(known) == len(sizes) and len(nameless) < 2
    regions: dict[str, int] = {}
    for client in mine if is_known else []:
        for name, region in client.regions.items():
            regions[name] = regions.get(name, 0) + (region.held or 0)
    ratios: dict[str, float] = {}
    for key in named:
        for name, ratio in busy[key].items() if owners[key] == pid else ():
            ratios[name] = min(1.0, ratios.get(name, 0.0) + ratio)
    times = [engine.busy_ns for client in mine for engine in client.engines.values()]
    is_timed = bool(times) and None not in times and len(nameless) < 2
    return Use(
        pid,
        card,
        sum(known) if is_known else None,
        regions,
        sum(one or 0 for one in times) / 1e9 if is_timed else None,
        ratios,
        tuple(sorted(others)),
        any(one.minor < _RENDER for one in ones),
    )


def _natural(name: str) -> tuple[int, str]:
    return len(name), name


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_BYTES)
    except OSError:
        return b""


def _text(path: str) -> str:
    return _bytes(path).decode("ascii", errors="replace")


def _int(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() and len(text) <= 20 else None
