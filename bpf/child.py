# SPDX-License-Identifier: Apache-2.0
"""Starts the loader (loader.py) as a child process and takes the descriptors that it sends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairsched.base.package import with_package
from fairsched.errors import HostUnsupported

NEWER_BCC = "use the python3-bpfcc of Ubuntu 24.04 or Debian 12, or newer"
TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20.0
_MAX_FDS = 250
_NO_MORE_BYTES = 400


@dataclass(frozen=True)
class Loaded:
    """What the kernel took of a set of programs; the descriptors are the caller's."""

    fds: dict[str, int]
    """Of maps by name, of programs by ``group/program``."""
    refused: dict[str, str]
    """Groups that were asked for and are not there: why."""

    def programs(self, group: str) -> dict[str, int]:
        """Those of one group by name."""
        start = f"{group}/"
        return {name.removeprefix(start): fd for name, fd in self.fds.items() if name.startswith(start)}


class LoaderInStart:
    """A loader of the GPU time programs that works while its starter does other things."""

    def __init__(self) -> None:
        self._started: tuple[socket.socket, subprocess.Popen[bytes]] | None = start()

    def take(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Its socket and process; the caller's from now on. May be called once."""
        assert self._started is not None
        taken, self._started = self._started, None
        return taken

    def close(self) -> None:
        """End it, unless somebody has taken it. Idempotent."""
        if self._started is not None:
            channel, process = self.take()
            channel.close()
            process.kill()
            process.wait()


def start(*args: str, stderr: Any = None) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The loader and our end of its socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "fairsched.bpf.loader", str(theirs.fileno()), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=(theirs.fileno(),),
            cwd="/",  # -m puts the working directory first, and whatever modules somebody has there
            start_new_session=True,
            env=with_package(os.environ),
        )
    return ours, process


def start_set(
    name: str,
    groups: Iterable[str],
    defines: Mapping[str, int] | None = None,
    *,
    plus: Iterable[str] = (),
    stderr: Any = None,
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The same, with what :func:`load` is asked for; who uses it waits and receives by himself."""
    request = {"groups": list(groups), "defines": dict(defines or {}), "plus": list(plus)}
    return start(name, json.dumps(request), stderr=stderr)


def receive(
    channel: socket.socket, process: subprocess.Popen[bytes]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Its answer and its descriptors by name. Raises HostUnsupported."""
    channel.settimeout(TIMEOUT_S)
    try:
        data, fds, _, _ = socket.recv_fds(channel, 65536, _MAX_FDS)
    except TimeoutError:
        raise HostUnsupported(
            f"the BPF loader is not done after {TIMEOUT_S:.0f} s",
            remedy="it needs seconds of a processor; fairsched doctor tries its compiler alone",
        ) from None
    if not data:
        raise _died(process)
    answer: dict[str, Any] = json.loads(data)
    if "error" in answer:
        raise HostUnsupported(answer["error"], remedy=answer.get("remedy", ""))
    for fd in fds:
        os.set_inheritable(fd, False)
    return answer, dict(zip(answer["names"], fds, strict=True))


def _died(process: subprocess.Popen[bytes]) -> HostUnsupported:
    """It closed its end without an answer: something ended it, and how it ended says what."""
    try:
        status = process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return HostUnsupported("the BPF loader closed its socket and goes on", remedy="see its stderr")
    remedy = "see its stderr, and fairsched doctor"
    if status == -signal.SIGKILL:
        remedy = "most likely out of memory: the compiler in bcc needs 150 MB while the daemon starts"
    elif status in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGILL):
        remedy = f"the compiler in bcc gave up (its LLVM may be too old): {NEWER_BCC}"
    return HostUnsupported(f"the BPF loader {exit_words(status)} before it had an answer", remedy=remedy)


def load(
    name: str, groups: Iterable[str], defines: Mapping[str, int] | None = None, *, plus: Iterable[str] = ()
) -> Loaded:
    """Load groups of the set ``name`` (program_sets.py); the child has ended when this returns.

    ``plus``: maps beyond those of the set, which only these ``defines`` bring about.

    A group is loaded whole or not at all. Raises HostUnsupported when none could be. What bcc prints about a
    refusal is kept from the log; its last line is in the error when nothing better is known.
    """
    with tempfile.TemporaryFile() as said:
        channel, process = start_set(name, groups, defines, plus=plus, stderr=said)
        try:
            answer, fds = receive(channel, process)
        except HostUnsupported as error:
            process.kill()
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            last = f" ({lines[-1][-_NO_MORE_BYTES:]})" if lines and "before it had" in str(error) else ""
            raise HostUnsupported(f"{error}{last}", remedy=error.remedy) from None
        finally:
            channel.close()
            process.wait(_STOP_TIMEOUT_S)
    return Loaded(fds, dict(answer["refused"]))


def exit_words(status: int) -> str:
    """How a child ended, from its return code: ``was killed by SIGABRT`` or ``ended with status 1``."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
