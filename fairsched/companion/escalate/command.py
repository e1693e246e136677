# SPDX-License-Identifier: Apache-2.0
"""The step ``command``: a program of the user's own, told by JSON what is wrong.

Standard input is one JSON document (docs/escalation.md), standard output and error are kept in the audit, cut. No
shell takes part: the configuration gives the program by its absolute path, and each argument by itself. It gets an
environment of a few variables, its own session, and a time; who takes longer is ended with all it started that
stayed in the session.

Exit status: 0 it did what it is for; 75 (EX_TEMPFAIL of sysexits.h) not now, nothing was changed; anything else, or
a signal: it failed. With ``undo: true`` it is called again with ``"action": "rollback"`` when the step is taken
back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from fairsched.companion.escalate.model import Order
from fairsched.companion.escalate.steps import CheckOrder, NotNow, Plan, StepFailed
from fairsched.protocol.status import StatusReport, to_plain

NOT_NOW = 75
"""EX_TEMPFAIL."""
SCHEMA_VERSION = 1
_OUTPUT_BYTES = 1_500
_GRACE_S = 2.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CommandStep:
    """`run` is program and arguments."""

    name = "command"

    def __init__(self, run: Sequence[str], *, limit_s: float, has_undo: bool) -> None:
        self._run = tuple(run)
        self._limit_s = limit_s
        self._has_undo = has_undo
        self.timeout_s = limit_s + 2 * _GRACE_S + 5.0

    def prepare(self, order: Order, report: StatusReport | None) -> Plan:
        program = self._run[0]
        if not os.access(program, os.X_OK) or not os.path.isfile(program):
            raise StepFailed(
                f"{program} is not a program that can be run", remedy="see escalation.command.run"
            )
        document = {
            "schema_version": SCHEMA_VERSION,
            "action": "apply",
            "id": order.id,
            "at_s": order.at_s,
            "why": order.why,
            "cause": to_plain(order.cause),
            "tenant": order.tenant,
            "gpu": order.gpu,
        }
        status = None if report is None else to_plain(report)
        return Plan(
            f"run {' '.join(self._run)}", undo={"document": document}, data={**document, "status": status}
        )

    def apply(self, order: Order, plan: Plan, check_order: CheckOrder) -> str:
        check_order()
        return self._call(plan.data)

    def rollback(self, order: Order, report: StatusReport | None, check_order: CheckOrder) -> str:
        if not self._has_undo:
            return "the command is not called to take it back (escalation.command.undo is false)"
        document = dict((order.undo or {}).get("document", {}))
        status = None if report is None else to_plain(report)
        check_order()
        return self._call({**document, "action": "rollback", "why": order.why, "status": status})

    def _call(self, document: Mapping[str, Any]) -> str:
        # Files, not pipes: a program that neither reads nor writes cannot block us, and its children may live on.
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as output:
            stdin.write(json.dumps(document).encode() + b"\n")
            stdin.seek(0)
            status = self._wait(stdin, output)
            said = _tail(output)
        if status == 0:
            return f"the command did it{said}"
        if status == NOT_NOW:
            raise NotNow(f"the command says: not now (exit status {NOT_NOW}){said}")
        if status is None:
            raise StepFailed(
                f"the command took more than {self._limit_s:g} s and was ended{said}", is_changed=True
            )
        how = f"was ended by signal {-status}" if status < 0 else f"failed with exit status {status}"
        raise StepFailed(f"the command {how}{said}")

    def _wait(self, stdin: IO[bytes], output: IO[bytes]) -> int | None:
        """Its exit status, negative = signal; None = it took too long and was ended."""
        try:
            process = subprocess.Popen(
                self._run,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={
                    "PATH": _PATH,
                    "LANG": "C.UTF-8",
                    "HOME": "/",
                    "FAIRSCHED_ESCALATION": str(SCHEMA_VERSION),
                },
                start_new_session=True,
            )
        except OSError as error:
            raise StepFailed(f"{self._run[0]} cannot be started: {error.strerror}") from error
        try:
            return process.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
                    if number is signal.SIGTERM:
                        with contextlib.suppress(OSError):  # what it started and left behind
                            os.killpg(process.pid, signal.SIGKILL)
                    return None
            return None


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _OUTPUT_BYTES))
    text = output.read(_OUTPUT_BYTES).decode(errors="replace").strip()
    return f": {text}" if text else ""
