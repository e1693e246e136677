# SPDX-License-Identifier: Apache-2.0
"""Processes that make driver calls for a test: in a cgroup, in a PID namespace, killed when the test says so.

An actor is a fork of the test's process without its descriptors, or a program that a container runtime started; they
talk over a socket, one message at a time.
The kernel tells the receiver the sender's pid in the receiver's own namespace, which is how an actor
in another namespace is known by both of its numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

from fairsched.base.wait import is_readable
from tests.vm.rm import Rm, libc

CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MESSAGE_BYTES = 1 << 18


class Actor:
    """A process, seen from the test."""

    def __init__(self, channel: socket.socket, everybody: list[Actor]) -> None:
        self.channel, self.everybody = channel, everybody
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        channel.settimeout(60)
        self.pid, self.nspid = -1, -1
        self.is_alive = True
        everybody.append(self)

    def greet(self) -> Actor:
        """Wait for the process's first word, and learn its numbers."""
        word, control, _, _ = self.channel.recvmsg(MESSAGE_BYTES, 1024)
        (self.nspid,) = pickle.loads(word)
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.pid = struct.unpack("3i", data)[0]
        return self

    def do(self, name: str, *args: Any, **named: Any) -> Any:
        """Call that method of the process's Rm; ``open`` and ``close`` make and end it."""
        return self._ask((name, args, named))

    def fork(self) -> Actor:
        """A child of the process: with its namespace and cgroup, and its open files."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = Actor(ours, self.everybody)
        socket.send_fds(self.channel, [pickle.dumps(("fork", (), {}))], [theirs.fileno()])
        theirs.close()
        self._answer()
        return child.greet()

    def unshare_children(self) -> None:
        """From now on its children are in a PID namespace of their own, below its own."""
        self._ask(("unshare", (), {}))

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        if not self.is_alive:
            return
        self.is_alive = False
        # A pidfd tells of the end of a process that is not our child, too: and then its files are closed.
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(self.pid)
            os.kill(self.pid, signal.SIGKILL)
            is_readable(fd, 60)
            os.close(fd)
        self.channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _ask(self, message: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
        self.channel.send(pickle.dumps(message))
        return self._answer()

    def _answer(self) -> Any:
        word = self.channel.recv(MESSAGE_BYTES)
        if not word:
            raise AssertionError(f"actor {self.pid} died")
        is_ok, value = pickle.loads(word)
        if not is_ok:
            raise value
        return value


def start(everybody: list[Actor], cgroup: Path | None = None, pidns: bool = False, **rm: Any) -> Actor:
    """A new actor; ``rm`` are the arguments of its Rm, opened with its first call."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    actor = Actor(ours, everybody)
    pid = os.fork()
    if pid == 0:
        _become(theirs, cgroup, pidns, rm)
    theirs.close()
    actor.greet()
    if pidns:
        os.waitpid(pid, 0)
    return actor


def _become(channel: socket.socket, cgroup: Path | None, pidns: bool, rm: dict[str, Any]) -> NoReturn:
    """In the child: nothing of the test's process may stay open, its BPF programs least of all."""
    try:
        fd = os.dup2(channel.fileno(), 1000)
        os.closerange(3, 1000)
        os.closerange(1001, 4096)
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text("0")
        if pidns:
            _enter_pid_namespace()
        serve(socket.socket(fileno=fd), rm, None)
    finally:
        os._exit(1)


def _enter_pid_namespace() -> None:
    """The caller leaves; its child, number 1 of the new namespace, goes on with a /proc of its own."""
    if libc.unshare(CLONE_NEWPID | CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if os.fork() != 0:
        os._exit(0)
    libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    if libc.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        raise OSError(ctypes.get_errno(), "mounting /proc")


def can_open(path: str) -> int:
    """0, or the errno."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or 0
    return 0


def serve(channel: socket.socket, arguments: dict[str, Any], rm: Rm | None) -> NoReturn:
    """In the actor: do as the test says, until it hangs up."""
    channel.send(pickle.dumps((os.getpid(),)))
    while True:
        word, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 1)
        if not word:
            os._exit(0)
        name, args, named = pickle.loads(word)
        try:
            if name == "fork":
                if os.fork() == 0:
                    channel.close()
                    serve(socket.socket(fileno=fds[0]), arguments, rm)
                os.close(fds[0])
                value = None
            elif name == "unshare":
                value = libc.unshare(CLONE_NEWPID)
            elif name == "can_open":
                value = can_open(*args)
            elif name == "open":
                rm, value = Rm(*args, **{**arguments, **named}), None
            else:
                rm = rm or Rm(**arguments)
                value = rm.do(name, *args, **named)
                rm = None if name == "close" else rm
            answer = (True, value)
        except Exception as error:
            answer = (False, error)
        channel.send(pickle.dumps(answer))


def listen(address: str) -> socket.socket:
    """Where the program of a container reports; it learns who is there as :func:`start` does."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    server.bind(f"\0{address}")
    server.listen(1)
    return server


def main(address: str) -> NoReturn:
    """As a program: ``python -m tests.vm.actor ADDRESS``."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(f"\0{address}")
    serve(channel, {}, None)


if __name__ == "__main__":
    main(sys.argv[1])
