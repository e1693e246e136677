# SPDX-License-Identifier: Apache-2.0
"""Runs the daemon as a process of its own, as an operator would: configuration, start, questions, log, end.

Approach. The daemon has one directory: ``config.yaml``, ``daemon.log``, ``run/`` and ``state/``. It is started as
``fairsched run``; nothing of it is imported here. It runs in a session of its own, so that a Ctrl-C reaches only
whoever started it and ends it in good order. The kernel kills it when that process dies; its guardian then thaws.

Terms. helper: a process that the daemon started, by role: attacher, loader, guardian, companion.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fairsched.base.package import with_package
from fairsched.errors import ControlError, FairschedError
from fairsched.protocol.client import TIMEOUT_S, ControlClient
from fairsched.simgpu.build import build
from fairsched.simgpu.workload import enter_command

COMMAND = (sys.executable, "-c", "from fairsched.cli import main; main()")
"""``fairsched``, whatever directory it is started in."""
_ROLES = {"fairsched.guardian.process": "guardian"}
"""Of modules whose last word does not say it."""
_STOP_S = 20.0
_HELPERS_S = 5.0
_NAP_S = 0.01


class NodeError(FairschedError):
    """A process of a simulated node ended, or something did not happen in time."""


def wait_until(condition: Callable[[], object], deadline_s: float, what: str) -> None:
    """Returns when ``condition()`` is true. Raises NodeError when it is not by the deadline."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_s:
            raise NodeError(f"not within {deadline_s:g} s: {what}")
        time.sleep(_NAP_S)


class DaemonProcess:
    """Configure, launch, ask, stop; may be launched again after its end. Call :meth:`close` in the end."""

    def __init__(
        self,
        directory: Path,
        env: Mapping[str, str] | None = None,
        *,
        cgroup: Path | None = None,
        patience_s: float = TIMEOUT_S,
    ) -> None:
        """``cgroup``: what it runs in; that of the caller otherwise. ``patience_s``: for an answer of its socket."""
        self.command: Sequence[str] = COMMAND
        """May be replaced by another program that takes the same arguments."""
        self.directory = directory
        self.config_path, self.log_path = directory / "config.yaml", directory / "daemon.log"
        self.run_dir, self.state_dir = directory / "run", directory / "state"
        self.socket_path = self.run_dir / "fairsched.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.extra_env = dict(env or {})
        """Beside the caller's environment."""
        self._cgroup = cgroup
        self._client = ControlClient(self.socket_path, timeout_s=patience_s)
        self._helpers: set[int] = set()

    # ---- its start ----

    def configure(self, document: Mapping[str, Any]) -> None:
        """Replaces the configuration; it says all but where the daemon's files are."""
        places = {"run_dir": str(self.run_dir), "state_dir": str(self.state_dir)}
        scratch = self.config_path.with_suffix(".new")
        scratch.write_text(yaml.safe_dump({**places, **document}))
        scratch.replace(self.config_path)

    def env(self) -> dict[str, str]:
        """The environment of the daemon, and of commands that talk to it."""
        # A service manager of ours is none of the daemon's.
        outside = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        return with_package({**outside, **self.extra_env})

    def argv(self, *options: str) -> list[str]:
        """What is executed."""
        return [*self.command, "run", "--config", str(self.config_path), *options]

    def launch(self, *options: str) -> None:
        """Starts it and does not wait for it."""
        if self.is_running:
            raise NodeError("the daemon runs already")
        # The kernel sends the parent-death signal when the *thread* that forked ends.
        on_main = threading.current_thread() is threading.main_thread()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                enter_command(build().load, self.argv(*options), self._cgroup, on_main),
                env=self.env(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, condition: Callable[[], object], deadline_s: float, what: str) -> None:
        """Waits while it runs. Raises NodeError with the end of its log when it ends, or does not get there."""

        def is_so() -> bool:
            if not self.is_running:
                raise NodeError(f"the daemon ended with {self.status_of_end}")
            return bool(condition())

        try:
            wait_until(is_so, deadline_s, what)
        except NodeError as error:
            raise type(error)(f"{error}; its log ends:\n{self.log_tail()}") from error

    # ---- while it runs ----

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def status_of_end(self) -> int | None:
        """Its exit status; None while it runs, or before it was started."""
        return None if self.process is None else self.process.poll()

    @property
    def pid(self) -> int:
        if self.process is None:
            raise NodeError("the daemon was not started")
        return self.process.pid

    def ask(self, request: str, **args: Any) -> Any:
        """Asks over the control socket. Raises ControlError."""
        return self._client.request(request, **args)

    def ping(self) -> int | None:
        """The pid that answers; None when none does."""
        try:
            return int(ControlClient(self.socket_path, timeout_s=2).request("ping")["pid"])
        except ControlError:
            return None

    def status(self) -> dict[str, Any]:
        """``fairsched status --json``, without the process. Raises ControlError."""
        answer: dict[str, Any] = self.ask("status")
        return answer

    def helpers(self) -> dict[str, int]:
        """Pids by role. What the daemon runs for a moment (ldconfig) is no helper."""
        found = {role: pid for pid in _children_of(self.pid) if (role := role_of(_words(pid)))}
        self._helpers |= set(found.values())
        return found

    def helpers_left(self) -> list[int]:
        """Helpers that run; also those that outlived the daemon. The guardian's command names the journal."""
        inside = f"{self.directory}/"
        named = (pid for pid in _all_pids() if role_of(words := _words(pid)) and _names(words, inside))
        return [pid for pid in {*self._helpers, *named} if is_running(pid)]

    def log(self) -> str:
        """What it has said; of all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of its log."""
        return "\n".join(self.log().splitlines()[-lines:])

    # ---- its end ----

    def stop(self, timeout_s: float = _STOP_S) -> int:
        """SIGTERM, and SIGKILL when that is not enough; the exit status. May be called twice."""
        if self.process is None:
            return 0
        if self.is_running:
            self.helpers()
            self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """SIGKILL, whatever it does; the exit status."""
        if self.process is None:
            return 0
        if self.is_running:
            self.helpers()
        self.process.kill()
        return self.process.wait()

    def close(self, timeout_s: float = _STOP_S) -> None:
        """Ends it and its helpers; those that stay are killed. The guardian of a killed daemon thaws first."""
        self.stop(timeout_s)
        # By itself the attacher lets go of its probes all at once; killed, one by one for seconds.
        with contextlib.suppress(NodeError):
            wait_until(lambda: not self.helpers_left(), _HELPERS_S, "the daemon's helpers have gone")
        for pid in self.helpers_left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# ---- processes ----


def role_of(words: Sequence[str]) -> str | None:
    """The role of a helper with this command; None for other processes."""
    if "-m" not in words[:-1]:
        return None
    module = words[words.index("-m") + 1]
    if not module.startswith("fairsched."):
        return None
    return _ROLES.get(module, module.rpartition(".")[2])


def is_running(pid: int) -> bool:
    """Zombies do not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def _names(words: Sequence[str], inside: str) -> bool:
    return any(word.startswith(inside) for word in words)


def _words(pid: int) -> list[str]:
    """The command of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())
