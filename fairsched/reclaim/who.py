# SPDX-License-Identifier: Apache-2.0
"""Tells who runs this command, for the audit log: what the kernel knows, and what the caller only claims.

The login uid is set once when somebody logs in and stays through sudo and su (audit(8), /proc/self/loginuid); where
nothing set it, it is None. SUDO_USER is a variable, which anybody can set: it is told as a claim.
"""

from __future__ import annotations

import os
import pwd
from typing import Any

from fairsched.reclaim.facts import read_facts

_UNSET = 2**32 - 1


def who() -> dict[str, Any]:
    """The caller."""
    login = _login_uid()
    parent = read_facts(os.getppid())
    return {
        "uid": os.getuid(),
        "user": name_of(os.getuid()),
        "login_uid": login,
        "login": None if login is None else name_of(login),
        "claims_sudo_user": os.environ.get("SUDO_USER"),
        "pid": os.getpid(),
        "terminal": _terminal(),
        "parent": None if parent is None else {"pid": parent.pid, "command": parent.command[:200]},
    }


def name_of(uid: int) -> str | None:
    """Of a user; None = it has no name here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _login_uid() -> int | None:
    try:
        with open("/proc/self/loginuid", encoding="ascii") as file:
            uid = int(file.read())
    except (OSError, ValueError):
        return None
    return None if uid == _UNSET else uid


def _terminal() -> str | None:
    try:
        return os.ttyname(0)
    except OSError:
        return None
