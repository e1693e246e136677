# SPDX-License-Identifier: Apache-2.0
"""Asks many hosts the same over the user's own ssh, and says of each what came of it.

Problem: some of fifty hosts hang, refuse, have no fairsched, or lie. None of them may keep the others waiting, fill
the memory here, or be taken for a host that answered.
Approach: one ssh process a host, a bounded number at a time, each in a session of its own with a time limit. What
comes back is data: bounded in size, parsed as JSON, and judged together with the exit status. ssh asks nothing
(BatchMode), so agent, known_hosts and ProxyJump are those of the user, and an unknown host key is a refusal.
Terms: an *answer* is the JSON document that the command printed there with ``--json``. Fields that it does not know
are not looked at, so another version may answer.
A host that was too late may still be at it: ssh was ended here, the command there was not.
Errors: HostUnsupported where there is no ssh. What one host does is an Answer, never an exception.
Source: ssh(1): exit status 255 is ssh's own; POSIX shells end with 127 when a command is not found.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairsched.base.printable import printable
from fairsched.base.signals import not_ignored
from fairsched.errors import HostUnsupported
from fairsched.reclaim.hosts import CONNECT_S, ssh_argv

PARALLEL = 64
_MOST_OF_ONE = 4 << 20
_MOST_OF_ALL = 64 << 20
"""Of the answers of all hosts together: a document is many times as large once it is parsed."""
_MOST_WORDS = 4096
_CHUNK = 1 << 16
_LOOK_S = 0.05
"""Between two looks whether a process has ended: a master of ssh's ControlPersist keeps stderr open after it."""
_SSH_FAILED, _NOT_FOUND = 255, 127
_SUDO_NOT_FOUND = re.compile(r"sudo: .*command not found")


class Result(enum.Enum):
    """What came of one host."""

    OK = "ok"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    MISSING = "no fairsched"
    LATE = "no answer in time"
    BAD = "bad answer"


@dataclass(frozen=True)
class Answer:
    """Of one host."""

    host: str
    result: Result
    why: str = ""
    """In the words of ssh or of the command there: whoever prints it asks printable()."""
    exit_status: int | None = None
    document: Any = None
    after_s: float = 0.0

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "host": self.host,
            "result": self.result.value,
            "why": self.why,
            "exit_status": self.exit_status,
            "after_s": round(self.after_s, 2),
            "answer": self.document,
        }


@dataclass(frozen=True)
class Limits:
    """Of one round."""

    host_s: float
    """For one host, from the start of its ssh."""
    parallel: int = PARALLEL
    answer_bytes: int = _MOST_OF_ONE
    all_bytes: int = _MOST_OF_ALL


@dataclass
class _Call:
    host: str
    process: subprocess.Popen[bytes]
    since_s: float
    out: bytearray = field(default_factory=bytearray)
    words: bytes = b""
    is_too_long: bool = False

    def read(self, fd: int, limit: int) -> bool:
        """What is there now; False at the end of it."""
        assert self.process.stdout is not None
        try:
            got = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if fd != self.process.stdout.fileno():
            self.words = (self.words + got)[-_MOST_WORDS:]
        elif len(self.out) + len(got) > limit:
            self.is_too_long = True
        else:
            self.out += got
        return bool(got)

    def pipes(self) -> list[int]:
        return [pipe.fileno() for pipe in (self.process.stdout, self.process.stderr) if pipe is not None]

    def close(self) -> None:
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


class Round:
    """One command on many hosts. ``answers`` fills while :meth:`run` runs; ``running`` are those that are at it."""

    def __init__(self, hosts: Sequence[str], words: Sequence[str], limits: Limits) -> None:
        self.hosts = tuple(hosts)
        self.answers: dict[str, Answer] = {}
        self._words, self._limits = tuple(words), limits
        self._calls: dict[str, _Call] = {}
        self._waiting = deque(hosts)
        self._bytes = 0
        self._selector = selectors.DefaultSelector()

    @property
    def running(self) -> dict[str, float]:
        """Host and for how many seconds."""
        now_s = time.monotonic()
        return {host: now_s - call.since_s for host, call in list(self._calls.items())}

    def run(self, tell: Callable[[], None] = lambda: None) -> list[Answer]:
        """In the order of the hosts. On Ctrl-C and SIGTERM every ssh is ended before the exception goes on."""
        ssh = shutil.which("ssh")
        if ssh is None:
            raise HostUnsupported("there is no ssh here", remedy="apt-get install openssh-client")
        with _ending_by_signals():
            try:
                while self._waiting or self._calls:
                    while self._waiting and len(self._calls) < self._limits.parallel:
                        self._start(ssh, self._waiting.popleft())
                    self._step()
                    tell()
            finally:
                for call in list(self._calls.values()):
                    self._kill(call)
                self._selector.close()
        return [self.answers[host] for host in self.hosts]

    def _start(self, ssh: str, host: str) -> None:
        argv = ssh_argv(ssh, host, self._words, min(CONNECT_S, self._limits.host_s))
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a ProxyCommand and a jump are ended with it
            )
        except OSError as error:
            why = f"ssh cannot be started: {error.strerror}"
            self.answers[host] = Answer(host, Result.FAILED, why)
            return
        call = self._calls[host] = _Call(host, process, time.monotonic())
        for fd in call.pipes():
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ, call)

    def _step(self) -> None:
        """What there is to read, then who has ended, and who is late."""
        for key, _ in self._selector.select(_LOOK_S):
            call: _Call = key.data
            assert isinstance(key.fd, int)
            if not call.read(key.fd, self._limits.answer_bytes):
                self._selector.unregister(key.fd)
        now_s = time.monotonic()
        for call in list(self._calls.values()):
            if call.is_too_long:
                self._kill(call)
                self._note(call, Result.BAD, f"it printed more than {self._limits.answer_bytes >> 10} KiB")
            elif call.process.poll() is not None:
                self._drain(call)
                self._forget(call)
                self._judge(call)
            elif now_s - call.since_s > self._limits.host_s:
                self._kill(call)
                said = f": {_last_line(call.words)}" if call.words else ""
                self._note(call, Result.LATE, f"not within {self._limits.host_s:g} s{said}")

    def _drain(self, call: _Call) -> None:
        """What is in the pipes: no more than they hold, for somebody else may still write."""
        for fd in call.pipes():
            if fd in self._selector.get_map():
                for _ in range(20):
                    with contextlib.suppress(OSError):
                        if not call.read(fd, self._limits.answer_bytes):
                            break

    def _kill(self, call: _Call) -> None:
        """The whole session; its leader is not reaped yet, so the number is still its own."""
        if call.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(call.process.pid, signal.SIGKILL)
            call.process.wait()
        self._forget(call)

    def _forget(self, call: _Call) -> None:
        for fd in call.pipes():
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)
        call.close()
        self._calls.pop(call.host, None)

    def _judge(self, call: _Call) -> None:
        status = call.process.returncode
        if call.is_too_long:
            self._note(call, Result.BAD, f"it printed more than {self._limits.answer_bytes >> 10} KiB")
            return
        self._bytes += len(call.out)
        if self._bytes > self._limits.all_bytes:
            most = f"{self._limits.all_bytes >> 20} MiB"
            self._note(call, Result.BAD, f"more than {most} from all hosts together: ask fewer at once")
            return
        result, why, document = judge(status, bytes(call.out), call.words)
        self._note(call, result, why, document)

    def _note(self, call: _Call, result: Result, why: str, document: Any = None) -> None:
        status = call.process.returncode
        after_s = time.monotonic() - call.since_s
        shown = None if status is None or status < 0 else status
        self.answers[call.host] = Answer(call.host, result, why, shown, document, after_s)


def judge(status: int, out: bytes, words: bytes) -> tuple[Result, str, Any]:
    """(result, why, document) from how ssh ended and what was printed (pure)."""
    last = _last_line(words)
    if status == _SSH_FAILED:
        return Result.UNREACHABLE, last or "ssh failed, and did not say why", None
    if status < 0:
        return Result.FAILED, f"ssh was ended by signal {-status}", None
    try:
        document = json.loads(out.decode(), parse_constant=_refuse) if out.strip() else None
    except (ValueError, RecursionError):
        document, is_json = None, False
    else:
        is_json = isinstance(document, dict | list)
    if status == 0:
        if is_json:
            return Result.OK, "", document
        shown = _last_line(out[:_MOST_WORDS])[:80]
        return Result.BAD, f"no JSON: {shown!r}" if shown else "it printed nothing", None
    if is_json:
        return Result.FAILED, f"exit status {status}" + (f": {last}" if last else ""), document
    if status == _NOT_FOUND or _SUDO_NOT_FOUND.match(last):
        return Result.MISSING, last or "command not found", None
    return Result.FAILED, f"exit status {status}" + (f": {last}" if last else ""), None


def _last_line(words: bytes) -> str:
    """The last that says something; an error's remedy comes after the error, so the error is taken."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", words.decode(errors="replace"))]
    said = [line for line in lines if line]
    errors = [line for line in said if line.startswith("error: ")]
    return (errors or said or [""])[-1][:400]


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def harmless(document: Any) -> Any:
    """The same with all strings fit to be printed: no escape sequence, and no line that is another host's."""
    if isinstance(document, str):
        return printable(document)
    if isinstance(document, list):
        return [harmless(one) for one in document]
    if isinstance(document, dict):
        return {printable(key): harmless(value) for key, value in document.items()}
    return document


@contextlib.contextmanager
def _ending_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end this program by an exception: what it started is in sessions of its own."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = not_ignored((signal.SIGTERM, signal.SIGHUP))
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
