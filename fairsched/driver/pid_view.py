# SPDX-License-Identifier: Apache-2.0
"""Process lists of the NVIDIA driver in the pids of whoever asks: gathering the facts, and doing it.

Problem: asked from a container, closed and older drivers answer with pids of the host, so nvidia-smi there shows none
of the container's processes. What the programs do about it is told in bpf/pid_view.bpf.c.

They write to the memory of tenants, which is why ``mechanisms.pid_view`` is off unless somebody wants it, and why
nothing is attempted where the kernel would refuse: pid_view_choice.py has the reasons, ``doctor`` shows them.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairsched.base.privileges import privileges
from fairsched.bpf import abi, syscall
from fairsched.bpf.instructions import EXIT_0
from fairsched.bpf.pid_view import PidViewPrograms
from fairsched.bpf.rooms import MapRooms
from fairsched.driver import namespaces
from fairsched.driver.inventory import MODULE, module_identity
from fairsched.driver.pid_view_choice import PidViewFacts, choose
from fairsched.errors import FairschedError, HostUnsupported

ENTRIES = ("nvidia_unlocked_ioctl", "nvidia_frontend_unlocked_ioctl")
"""The driver's ioctl, from 545 on and before."""
TRANSLATOR = "os_find_ns_pid"
"""What a driver asks that translates by itself; older ones do not have it."""
KALLSYMS = Path("/proc/kallsyms")
_KPROBE = Path("/sys/bus/event_source/devices/kprobe/type")
_BTF = Path("/sys/kernel/btf/vmlinux")
_WRITE_USER = 36
"""Number of the BPF helper bpf_probe_write_user."""
_TRIES = 3
"""For one driver: what is refused once may be for a passing reason, as a compiler that was killed."""

logger = logging.getLogger(__name__)


def read_symbols(wanted: Iterable[str], path: Path = KALLSYMS) -> set[str]:
    """Those of ``wanted`` that are functions of the nvidia module."""
    names = {name.encode() for name in wanted}
    found = set()
    try:
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"[nvidia]\n"):
                    _, kind, name, *_ = line.split()
                    if name in names and kind in b"tT":
                        found.add(name.decode())
    except OSError:
        return set()
    return found


def try_write_user() -> str | None:
    """Load a program that could write to user memory, and never does: why it is refused, or None.

    Kernels before 6.14 or so say in their log that such a program was loaded.
    """
    store, move, add, call, end = 0x7A, 0xBF, 0x07, 0x85, 0x95
    set_register = 0xB7
    code = (
        (store, 10, 0, -8, 0),
        (set_register, 1, 0, 0, 0),
        (move, 2, 10, 0, 0),
        (add, 2, 0, 0, -8),
        (set_register, 3, 0, 0, 8),
        (call, 0, 0, 0, _WRITE_USER),
        (set_register, 0, 0, 0, 0),
        (end, 0, 0, 0, 0),
    )
    insns = b"".join(
        struct.pack("<BBhi", op, source << 4 | target, offset, value)
        for op, target, source, offset, value in code
    )
    refusal = _load(insns)
    if (
        refusal is None or _load(EXIT_0) is not None
    ):  # a program that does nothing is refused, too: say so there
        return None
    # EINVAL: the verifier does not know the helper, which is how lockdown shows
    known = (errno.EINVAL, errno.EPERM, errno.EACCES)
    return "not allowed" if refusal.errno in known else str(refusal.strerror)


def _load(insns: bytes) -> OSError | None:
    """Why a program is refused. Kernels before 5.11 also refuse what passes RLIMIT_MEMLOCK of the user, as EPERM."""
    try:
        os.close(syscall.load_program(syscall.PROG_TYPE_KPROBE, insns))
    except OSError as error:
        return error
    return None


def gather(capabilities: frozenset[str], lockdown: str | None, *, try_bpf: bool) -> PidViewFacts:
    """All facts. ``try_bpf`` loads a program, which some kernels note in their log."""
    symbols = read_symbols((*ENTRIES, TRANSLATOR))
    return PidViewFacts(
        is_initial_namespace=namespaces.is_initial(),
        has_sys_admin="CAP_SYS_ADMIN" in capabilities,
        has_kprobes=_KPROBE.exists(),
        has_btf=_BTF.exists(),
        lockdown=lockdown,
        write_refusal=try_write_user() if try_bpf else None,
        entry=next((name for name in ENTRIES if name in symbols), None),
        has_driver=MODULE.exists(),
        has_translator=TRANSLATOR in symbols,
    )


class PidView:
    """The translation at work. Raises HostUnsupported when it cannot be."""

    def __init__(self, facts: PidViewFacts) -> None:
        if facts.entry is None:
            raise HostUnsupported("the driver has no ioctl function to put a probe on")
        self.entry = facts.entry
        self._programs = PidViewPrograms()
        try:
            self._start(facts)
        except OSError as error:
            self._programs.close()
            raise HostUnsupported(
                f"{facts.entry} could not be probed: {error.strerror}",
                remedy="see whether kprobes are switched off: /sys/kernel/debug/kprobes/enabled",
            ) from error
        except BaseException:
            self._programs.close()
            raise

    def _start(self, facts: PidViewFacts) -> None:
        if not facts.has_translator:
            self._programs.set_translator(abi.ViewBy.US)
        self._programs.watch_exits()
        # First the probes, then the book: who comes between is written down by both.
        self._programs.attach(self.entry, TRANSLATOR if facts.has_translator else None)
        self.missed = self._write_down()

    def _write_down(self) -> int:
        """Enter processes that have used the driver before; returns how many had no room."""
        places, missed = namespaces.Places(), 0
        for pid in namespaces.driver_users():
            before = namespaces.started(pid)
            where = places.of(pid)
            if not where or before is None:
                continue
            try:
                self._programs.enter(pid, where)
            except OSError:
                missed += 1
            if namespaces.started(pid) != before:  # it ended, maybe before the entry
                self._programs.strike(pid, where)
        return missed

    def is_needless(self) -> bool:
        """Whether the driver has turned out to translate everything by itself."""
        return set(self._programs.translators().values()) == {abi.ViewBy.DRIVER}

    @property
    def rooms(self) -> MapRooms:
        """Who has how much of the book."""
        return self._programs.rooms

    def status(self) -> Mapping[str, Any]:
        """For ``status`` and the metrics: who translates which kind, and the counters."""
        by = {kind.name.lower(): who.name.lower() for kind, who in self._programs.translators().items()}
        return {"entry": self.entry, "by": by, "counts": self._programs.counts()}

    def close(self) -> None:
        """Stop. Idempotent."""
        self._programs.close()


class PidViewKeeper:
    """Has a :class:`PidView` while there is a driver, beside the daemon's loop: loading takes seconds.

    A driver that comes later, or comes again, is found within ``look_s``. Where ``wish`` is required, the first view is
    made before this returns. Raises HostUnsupported when it cannot be, and there is more in the way than that no
    driver is loaded yet.
    """

    def __init__(
        self, wish: str, capabilities: frozenset[str], lockdown: str | None, look_s: float = 5.0
    ) -> None:
        self._wish, self._look_s = wish, look_s
        self._about = (capabilities, lockdown)
        self._view: PidView | None = None
        self._driver: int | None = None
        self._tries = _TRIES
        self._reason = "starting"
        self._lock = threading.Lock()
        self._end = threading.Event()
        if wish == "required":
            self._insist()
        self._thread = threading.Thread(target=self._run, name="pid-view", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            driver = module_identity()
            if driver != self._driver:
                self._driver, self._tries = driver, _TRIES
                self._replace(None, "another driver")
            if self._tries and self._view is None:
                self._tries -= 1
                self._start()
            elif (view := self._view) is not None and view.is_needless():
                self._tries = 0
                self._replace(None, "this driver translates by itself")
            self._end.wait(self._look_s)

    def _insist(self) -> None:
        self._driver = module_identity()
        facts = gather(*self._about, try_bpf=True)
        choice = choose(facts, self._wish)
        if not choice.is_on and not choice.is_waiting:
            raise _refusal(choice.reason, choice.remedy)
        try:
            self._replace(PidView(facts) if choice.is_on else None, choice.reason)
        except FairschedError as error:
            raise _refusal(str(error), error.remedy) from error

    def _start(self) -> None:
        """For the driver of the last look."""
        facts = gather(*self._about, try_bpf=False)
        if module_identity() != self._driver:  # these may be facts of two: look again
            return
        choice = choose(facts, self._wish)
        try:
            self._replace(PidView(facts) if choice.is_on else None, choice.reason)
        except FairschedError as error:
            self._replace(None, str(error))

    def _replace(self, view: PidView | None, reason: str) -> None:
        with self._lock:
            is_news = (self._view is None, self._reason) != (view is None, reason)
            self._reason = reason
            old, self._view = self._view, view
            if self._end.is_set():  # closed meanwhile: nobody else will close it
                old, self._view = view, None
        if old is not None:
            old.close()
        if is_news:
            logger.info("pid_view=%s reason=%r", "off" if view is None else "on", reason)

    def status(self) -> Mapping[str, Any]:
        """For ``status`` and the metrics: whether it is on, why, and what :meth:`PidView.status` says."""
        with self._lock:
            inner = {} if self._view is None else self._view.status()
            return {"is_on": self._view is not None, "reason": self._reason, **inner}

    def rooms(self) -> list[MapRooms]:
        """Who has how much of the view's book; of none where it is off."""
        with self._lock:
            return [] if self._view is None else [self._view.rooms]

    def close(self) -> None:
        """Stop. Idempotent. Does not wait for a compiler, which ends with this process."""
        self._end.set()
        with self._lock:
            view, self._view = self._view, None
        if view is not None:
            view.close()


def _refusal(reason: str, remedy: str) -> HostUnsupported:
    return HostUnsupported(
        f"pid_view is required, but {reason}",
        remedy="; or ".join(filter(None, (remedy, "set mechanisms.pid_view: auto"))),
    )


def keep(wish: str) -> PidViewKeeper | None:
    """A keeper, unless ``mechanisms.pid_view`` is off. Raises HostUnsupported when it is required and cannot be."""
    if wish == "off":
        return None
    return PidViewKeeper(wish, *privileges())
