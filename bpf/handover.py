# SPDX-License-Identifier: Apache-2.0
"""Hands over from the loader to the attacher that it becomes (the same process, another program)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any


def attacher_command(channel_fd: int, setup: Mapping[str, Any]) -> list[str]:
    """The command line of an attacher: people read it in ``ps``, so what it is told is in a file of memory."""
    fd = os.memfd_create("setup", 0)
    with open(fd, "w", encoding="ascii", closefd=False) as file:
        json.dump(setup, file)
    os.lseek(fd, 0, os.SEEK_SET)
    return [sys.executable, "-m", "fairsched.bpf.attacher", str(channel_fd), str(fd)]


def take_setup(fd: int) -> dict[str, Any]:
    """What an attacher was told; closes the file."""
    with open(fd, encoding="ascii") as file:
        setup: dict[str, Any] = json.load(file)
    return setup
