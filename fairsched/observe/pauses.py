# SPDX-License-Identifier: Apache-2.0
"""Finds the cgroups that work on a GPU and are paused by somebody else: docker pause, systemctl freeze, an operator.

Problem. Work that was under way when its process was frozen never ends for the account, which goes on to charge it,
and takes what the others did meanwhile for something else. A look at all cgroups comes once a second: much is learnt
wrongly in a second.

Approach. The ``frozen`` of cgroup.events is watched through one descriptor for each cgroup with GPU work, read only
when the kernel says that it changed. What is frozen and held by nobody of ours is paused where a cgroup.freeze says so,
its own or one above: after a thaw of ours it stays frozen for a moment. The account is told, as it is of our holds.

A child cgroup may be paused by itself; the tenant's others go on, and are held as before.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Protocol

from fairsched.cgroup.path import Mount
from fairsched.cgroup.state import CGROUP_EVENTS, CGROUP_FREEZE, read_asked, read_frozen
from fairsched.observe.tree import Tree


class PauseAccount(Protocol):
    """The part of an account that must know of pauses."""

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool) -> None: ...

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None: ...


@dataclass
class _Watched:
    """A cgroup with GPU work."""

    path: str
    events_fd: int
    is_polled: bool
    """epoll tells when there is news of it."""


class Pauses:
    """Call :meth:`poll` after each read of the account, and :meth:`close` in the end."""

    def __init__(
        self, mount: Mount, tree: Tree, account: PauseAccount, is_ours: Callable[[int], bool]
    ) -> None:
        """``is_ours``: whether a cgroup, by its id, is held by us now, by itself or with one above."""
        self._mount, self._tree, self._account, self._is_ours = mount, tree, account, is_ours
        self._epoll = select.epoll()
        self._watched: dict[int, _Watched] = {}
        """By cgroup id."""
        self._frozen: set[int] = set()
        """By anybody."""
        self.paused: set[int] = set()
        """By somebody else, and the account was told."""

    def poll(self, now_ns: int, users: Set[int] | None = None) -> None:
        """``users``: ids of the cgroups with GPU work; None: as before."""
        is_ours, news = self._is_ours, set[int]()
        if users is not None and users != self._watched.keys():
            for cgroup_id in self._watched.keys() - users:
                self._forget(cgroup_id)
            news = set(self._begin(users))
        if self._watched:
            by_fd = {fd for fd, _ in self._epoll.poll(0)}
            news |= {key for key, one in self._watched.items() if one.events_fd in by_fd or not one.is_polled}
        for cgroup_id in news:
            self._read(cgroup_id)
        ended = {key for key in self.paused - self._frozen if not is_ours(key)}
        begun = {key for key in self._frozen - self.paused if not is_ours(key) and self._is_asked(key)}
        self.paused &= self._frozen
        self.paused |= begun
        if ended:
            self._account.thaw(ended, now_ns)
        if begun:
            self._account.hold(begun, now_ns, by_others=True)
        for cgroup_id in begun | ended:
            self._tree.look_for_pauses(cgroup_id)

    def forget(self) -> None:
        """There is another account, which was told nothing yet."""
        self.paused.clear()

    def close(self) -> None:
        """Give the descriptors back."""
        for cgroup_id in list(self._watched):
            self._forget(cgroup_id)
        self._epoll.close()

    # ---- mechanism ----

    def _begin(self, users: Set[int]) -> Iterator[int]:
        """Watch those not watched yet, as far as their path is known; the others soon, when all cgroups were seen."""
        paths = self._tree.paths or {}
        for cgroup_id in users - self._watched.keys():
            path = paths.get(cgroup_id)
            if path is None:
                continue
            try:
                events_fd = os.open(
                    f"{self._mount.absolute(path)}/{CGROUP_EVENTS}", os.O_RDONLY | os.O_CLOEXEC
                )
            except OSError:  # gone again
                continue
            is_polled = True
            try:
                self._epoll.register(events_fd, select.EPOLLPRI | select.EPOLLET)
            except PermissionError:
                is_polled = False
            self._watched[cgroup_id] = _Watched(path, events_fd, is_polled)
            yield cgroup_id

    def _read(self, cgroup_id: int) -> None:
        try:
            is_frozen = read_frozen(self._watched[cgroup_id].events_fd)
        except OSError:  # the cgroup is gone, and whoever was in it
            is_frozen = False
        (self._frozen.add if is_frozen else self._frozen.discard)(cgroup_id)

    def _is_asked(self, cgroup_id: int) -> bool:
        """Whether a cgroup.freeze that is not ours says 1: its own, or that of a cgroup above."""
        path = self._watched[cgroup_id].path
        while path:
            with contextlib.suppress(OSError):  # the root has none
                fd = os.open(f"{self._mount.absolute(path)}/{CGROUP_FREEZE}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if read_asked(fd) and not self._is_ours(os.stat(self._mount.absolute(path)).st_ino):
                        return True
                finally:
                    os.close(fd)
            path = path.rpartition("/")[0]
        return False

    def _forget(self, cgroup_id: int) -> None:
        watched = self._watched.pop(cgroup_id)
        if watched.is_polled:
            self._epoll.unregister(watched.events_fd)
        os.close(watched.events_fd)
        self._frozen.discard(cgroup_id)
        self.paused.discard(cgroup_id)
