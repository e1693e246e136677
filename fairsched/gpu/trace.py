# SPDX-License-Identifier: Apache-2.0
"""Whose turn it was, as the GPU itself writes it down: NVIDIA's trace of context switches.

Problem. Calls tell when a program has work, not when the GPU works for it. The engine's firmware (FECS) keeps a log of
each switch for profilers: which process left, which came, to 32 ns. The driver hands it to whoever has CAP_SYS_ADMIN,
for all users and contexts, older ones included.

Approach. The calls a profiler makes (rm.py): an event buffer in memory that this process may only read, bound to the
trace. It is asked for what has come at each read, so nothing depends on the driver's own timer. Nothing about the GPU
is changed, and everything ends with this process. Two things about an event buffer are not checked by the driver (its
subdevice, the size of a record), so one function makes its parameters; and only branches of the driver are accepted
whose structures were compared (KNOWN), by ``auto`` only those on which it has been run (TRIED).

Terms. switch: a process gets the engine or leaves it. channel: a queue of one context. Time is CLOCK_MONOTONIC; both
clocks are looked at several times a second, as they drift by some 30 us a second (H100).

Source: open-gpu-kernel-modules 595.45 (event_buffer.c, fecs_event_list.c, cl90cdfecs.h).
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from fairsched.gpu.rm import Client, Refused

KNOWN = frozenset({545, 550, 555, 560, 565, 570, 575, 580, 590, 595})
"""Branches of the driver whose structures are these."""
TRIED = frozenset({580})
"""Those on which this has been run."""
_MAX_GPUS = 32
_EVENT_BUFFER = 0x90CD
_BIND, _ENABLE, _TAKEN, _FLUSH = 0x20801238, 0x90CD0101, 0x90CD0102, 0x90CD0104
_GPU_TIME, _GPU_ID = 0x20800403, 0x2080014A
_START, _END = 6, 7
_KERNEL = 0xFFFFFFFF
"""The driver's own contexts: no process, and times that mean nothing."""
_HEADER = struct.Struct("=IIQQ")
_HEADER_BYTES = 4096
_RECORD = struct.Struct("=HHI BBH I I HBB Q")
_RECORD_BYTES, _RECORDS = 32, 32768
_CLOCK_NS, _CLOCK_LOOKS = 250_000_000, 5
_CLOCK_DOUBT_NS, _CLOCK_DRIFT = 200_000, 50e-6
"""A look at the clocks that is surer than the first is taken; another one is if what is known is less sure by now."""
_REASONS = {
    1: "the GPU is too old",
    2: "not on this GPU",
    3: "switched off",
    4: "needs CAP_SYS_ADMIN",
    5: "needs a capability",
}


class Switch(NamedTuple):
    """A process gets the engine, or leaves it."""

    t_ns: int
    pid: int
    """0: the driver's own."""
    channel: int
    is_start: bool

    @property
    def is_hole(self) -> bool:
        """It stands for what was lost: from here on nobody is known to have the engine."""
        return not (self.pid or self.channel or self.is_start)


class Trace(Protocol):
    """Of one GPU."""

    @property
    def told_ns(self) -> int:
        """CLOCK_MONOTONIC: whatever was before this has been told, or was missing; 0: nothing has."""

    def read(self) -> tuple[list[Switch], bool]:
        """Every switch since the last call that is known, in order, and whether none is missing. Raises TraceLost."""


class TraceRefused(Exception):
    """There is no trace here, and why."""


class TraceLost(Exception):
    """Nothing more will come, and why."""


def obstacle(driver_version: str | None, *, is_asked_for: bool) -> str | None:
    """Why it is not tried with such a driver; None: it is (pure). ``is_asked_for``: by name, not by ``auto``."""
    found = re.match(r"(\d+)\.", driver_version or "")
    branch = int(found[1]) if found else 0
    if branch not in KNOWN:
        return f"of driver {driver_version or '(unknown)'} the trace's structures are not known"
    if branch not in TRIED and not is_asked_for:
        return f"the trace has not been tried with driver branch {branch}"
    return None


def event_buffer(subdevice: int, header: int, records: int) -> bytes:
    """Parameters of an event buffer that notifies nobody (pure)."""
    if not (subdevice and header and records):
        raise ValueError("an event buffer needs its subdevice and its memory")
    notify = thresholds = vardata = flags = 0
    return struct.pack(
        "=QQIIQIIQIIIIII",
        *(0, 0, _RECORD_BYTES, _RECORDS, vardata, 0, thresholds, notify),
        *(thresholds, subdevice, flags, header, records, vardata),
    )


class Record(NamedTuple):
    """As the driver writes it."""

    tag: int
    seqno: int
    channel: int
    pid: int
    gpu_ns: int


_HOLE = Record(_END, 0, 0, _KERNEL, 0)
"""Stands for records that were lost: from the one before on nobody is known to have the engine."""


def switches(records: Iterable[Record], to_host: Callable[[int], int], last_ns: int) -> Iterator[Switch]:
    """In the host's clock, none before ``last_ns`` or the one before (pure)."""
    for record in records:
        if record.tag not in (_START, _END):
            continue
        is_kernel = record.pid == _KERNEL
        if not is_kernel:
            last_ns = max(last_ns, to_host(record.gpu_ns))
        yield Switch(last_ns, 0 if is_kernel else record.pid, record.channel, record.tag == _START)


class GpuTrace:
    """The trace of one GPU, of all users. Needs root. Close it in the end."""

    def __init__(self, uuid: str, device_dir: Path = Path("/dev"), first_guess: int = 0) -> None:
        """``first_guess``: which number the driver may know it by. Raises TraceRefused."""
        try:
            self._client, self._subdevice = _found(uuid, device_dir, first_guess)
        except (OSError, Refused) as error:
            raise TraceRefused(str(error)) from error
        try:
            self._begin()
            self._offset_ns, self._doubt_ns = self._look_at_clocks()
            self._looked_ns = time.monotonic_ns()
        except (OSError, Refused) as error:
            self.close()
            raise TraceRefused(str(error)) from error
        except BaseException:
            self.close()
            raise
        self._seqno: int | None = None
        self.told_ns = 0
        self._last_ns = time.monotonic_ns()  # the driver's own have no time, and one may be the first

    def close(self) -> None:
        """Idempotent."""
        self._client.close()

    def read(self) -> tuple[list[Switch], bool]:
        """See :class:`Trace`."""
        begun_ns = time.monotonic_ns()
        try:
            records, dropped = self._take()
            now_ns = time.monotonic_ns()
            if now_ns - self._looked_ns > _CLOCK_NS:
                offset_ns, doubt_ns = self._look_at_clocks()
                # Beside who keeps the driver busy a look takes long: what is known drifts, but by little.
                self._doubt_ns += round((now_ns - self._looked_ns) * _CLOCK_DRIFT)
                self._looked_ns = now_ns
                if doubt_ns <= max(_CLOCK_DOUBT_NS, self._doubt_ns):
                    self._offset_ns, self._doubt_ns = offset_ns, doubt_ns
        except (OSError, Refused) as error:
            raise TraceLost(str(error)) from error
        told = list(self._with_holes(records, dropped))
        found = list(switches(told, lambda gpu_ns: gpu_ns + self._offset_ns, self._last_ns))
        if found:
            self._last_ns = found[-1].t_ns
        self.told_ns = begun_ns
        return found, _HOLE not in told

    def _with_holes(self, records: Iterable[Record], dropped: int) -> Iterator[Record]:
        for record in records:
            if self._seqno is not None and record.seqno != (self._seqno + 1) % 65536:
                yield _HOLE
            self._seqno = record.seqno
            yield record
        if dropped:  # there was no room after these
            yield _HOLE

    def _take(self) -> tuple[list[Record], int]:
        self._client.control(self._buffer, _FLUSH, bytearray())
        get, put, _, dropped = _HEADER.unpack_from(self._header)
        if max(get, put) >= _RECORDS:
            raise Refused(f"its ring is of {_RECORDS} records and stands at {get} and {put}")
        found = []
        while get != put:
            fields = _RECORD.unpack_from(self._records, get * _RECORD_BYTES)
            found.append(Record(fields[3], fields[5], fields[6], fields[7], fields[11]))
            get = (get + 1) % _RECORDS
        self._client.control(self._buffer, _TAKEN, bytearray(struct.pack("=II", put, 0)))
        return found, dropped

    def _begin(self) -> None:
        client = self._client
        header, self._header = client.memory(_HEADER_BYTES)
        records, self._records = client.memory(_RECORDS * _RECORD_BYTES)
        self._buffer = client.alloc(
            client.handle, _EVENT_BUFFER, event_buffer(self._subdevice, header, records)
        )
        of_all_users, simple = 1, 1
        bind = bytearray(struct.pack("=IIIIB3xI", self._buffer, _RECORD_BYTES, simple, 0, of_all_users, 0))
        try:
            client.control(self._subdevice, _BIND, bind)
        except Refused as error:
            reason = struct.unpack_from("=I", bind, 20)[0]
            raise Refused(f"{error}: {_REASONS[reason]}" if reason in _REASONS else str(error)) from error
        client.control(self._buffer, _ENABLE, bytearray(struct.pack("=B3xI", 1, 0)))

    def _look_at_clocks(self) -> tuple[int, int]:
        """CLOCK_MONOTONIC less the GPU's clock, and how far that may be off: each look bounds it from both sides."""
        low, high = -(1 << 63), (1 << 63) - 1
        for _ in range(_CLOCK_LOOKS):
            answer = bytearray(8)
            before_ns = time.monotonic_ns()
            self._client.control(self._subdevice, _GPU_TIME, answer)
            after_ns = time.monotonic_ns()
            gpu_ns = struct.unpack("=Q", answer)[0]
            low, high = max(low, before_ns - gpu_ns), min(high, after_ns - gpu_ns)
        return (low + high) // 2, abs(high - low) // 2


def _found(uuid: str, device_dir: Path, first_guess: int) -> tuple[Client, int]:
    """A client, and the subdevice of that GPU: numbers are the driver's, a UUID is the GPU's.

    Of the GPUs that it is not nothing stays open: an open node keeps its GPU awake, and from being reset.
    """
    refusal = "the driver has no such GPU"
    for instance in sorted(range(_MAX_GPUS), key=lambda one: one != first_guess):
        client = Client(device_dir)
        try:
            subdevice, answer = client.subdevice(instance), bytearray(12 + 256)
            client.control(subdevice, _GPU_ID, answer)
            length = min(256, struct.unpack_from("=I", answer, 8)[0])
            if answer[12 : 12 + length].rstrip(b"\0").decode("ascii", "replace") == uuid:
                return client, subdevice
        except (OSError, Refused) as error:  # another GPU may be gone
            refusal = str(error) if instance == first_guess else refusal
        except BaseException:
            client.close()
            raise
        client.close()
    raise Refused(refusal)
