# SPDX-License-Identifier: Apache-2.0
"""How rivals hold a tenant: by cgroup.freeze, or by SIGSTOP to each of its processes; and the log of the holds.

A cgroup that is not there (not yet, not any more) is nothing to hold. A process that was stopped is named by a pidfd:
its number may belong to somebody else by the time it is let go.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.rivals.base import Action, RivalError, Tenant

_SWEEPS = 10
"""Looks for processes forked while their siblings were being stopped; a storm may outrun them until the next scan."""
_GONE = (errno.ENOENT, errno.ENODEV)


class HeldLog:
    """One JSON line per finished hold."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open as long as we are

    def add(self, leaf: str, start_ns: int, end_ns: int) -> None:
        """Raises RivalError when it cannot be written: holds that are not known would count as none."""
        try:
            self._file.write(json.dumps({"leaf": leaf, "start_ns": start_ns, "end_ns": end_ns}) + "\n")
        except OSError as error:
            raise RivalError(f"{self._file.name}: {error}", remedy="give a held_log with room") from error


class Hands(ABC):
    """Holds tenants and lets them go; how is for the heirs."""

    def __init__(self, tenants: Iterable[Tenant], log: HeldLog) -> None:
        self._tenants = {tenant.leaf: tenant for tenant in tenants}
        self._log = log
        self._held_ns: dict[str, int] = {}
        """Leaf -> since when."""

    def act(self, action: Action) -> None:
        """Carry one action out."""
        tenant = self._tenants[action.leaf]
        if action.is_hold:
            now_ns = time.monotonic_ns()
            if self.hold(tenant):
                self._held_ns.setdefault(tenant.leaf, now_ns)
        elif tenant.leaf in self._held_ns:
            self.let_go(tenant)
            self._log.add(tenant.leaf, self._held_ns.pop(tenant.leaf), time.monotonic_ns())

    def let_all_go(self) -> None:
        """Whatever happens to one of them, the others are let go. Raises RivalError in the end."""
        failed = []
        for tenant in self._tenants.values():
            try:
                self.let_go(tenant)
            except OSError as error:
                failed.append(f"{tenant.leaf}: {error}")
        if failed:
            raise RivalError(f"not let go: {'; '.join(failed)}", remedy="thaw their cgroups, or SIGCONT them")
        end_ns = time.monotonic_ns()
        while self._held_ns:
            leaf, start_ns = self._held_ns.popitem()
            self._log.add(leaf, start_ns, end_ns)

    @abstractmethod
    def hold(self, tenant: Tenant) -> bool:
        """Whether there was anything to hold. To hold twice is allowed."""

    @abstractmethod
    def let_go(self, tenant: Tenant) -> None:
        """Nothing happens to one that we do not hold."""


class Freezer(Hands):
    """cgroup.freeze: the cgroup with all below it."""

    def __init__(self, tenants: Iterable[Tenant], log: HeldLog) -> None:
        super().__init__(tenants, log)
        self._frozen: set[str] = set()
        """Written before the kernel is asked: one that may be frozen is thawed."""

    def hold(self, tenant: Tenant) -> bool:
        self._frozen.add(tenant.leaf)
        is_there = _write_freeze(tenant, b"1")
        if not is_there:
            self._frozen.discard(tenant.leaf)
        return is_there

    def let_go(self, tenant: Tenant) -> None:
        if tenant.leaf in self._frozen:
            _write_freeze(tenant, b"0")
            self._frozen.discard(tenant.leaf)


def _write_freeze(tenant: Tenant, value: bytes) -> bool:
    """Whether the cgroup is there."""
    try:
        fd = os.open(f"{tenant.cgroup}/cgroup.freeze", os.O_WRONLY)
        try:
            os.write(fd, value)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise
    return True


class Stopper(Hands):
    """SIGSTOP to every process of the cgroup and of those below it, again at each call."""

    def __init__(self, tenants: Iterable[Tenant], log: HeldLog) -> None:
        super().__init__(tenants, log)
        self._stopped: dict[str, dict[int, int]] = {leaf: {} for leaf in self._tenants}
        """Leaf -> pid -> pidfd."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one descriptor per stopped process

    def hold(self, tenant: Tenant) -> bool:
        stopped = self._stopped[tenant.leaf]
        done: set[int] = set()
        for _ in range(_SWEEPS):
            fresh = set(_pids(tenant.cgroup)) - done
            if not fresh:
                break
            done |= fresh
            for pid in fresh:
                _stop(pid, stopped)
        return bool(stopped)

    def let_go(self, tenant: Tenant) -> None:
        stopped = self._stopped[tenant.leaf]
        while stopped:
            _, pidfd = stopped.popitem()
            try:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            finally:
                os.close(pidfd)


def _stop(pid: int, stopped: dict[int, int]) -> None:
    """One that is stopped already gets it again: it may have been continued by its own side."""
    for _ in range(2):
        if pid not in stopped:
            try:
                stopped[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                return
        try:
            signal.pidfd_send_signal(stopped[pid], signal.SIGSTOP)
            return
        except ProcessLookupError:  # gone; its number may be somebody else's by now
            os.close(stopped.pop(pid))


def _pids(cgroup: str) -> Iterator[int]:
    """Of the cgroup and of all below it."""
    for directory, _, _ in os.walk(cgroup):
        try:
            with open(f"{directory}/cgroup.procs") as lines:
                yield from (int(line) for line in lines if line != "0\n")  # 0 = of another pid namespace
        except OSError as error:
            # A threaded cgroup has no processes of its own: they are listed above it.
            if error.errno not in (*_GONE, errno.EOPNOTSUPP):
                raise
