# SPDX-License-Identifier: Apache-2.0
"""Writes a file of a vendor's module and puts back what it said before, unless somebody else has written it since."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from fairsched.errors import KernelRefused

_MOST = 256
"""Of characters: a number with a few words around it."""


class Written(NamedTuple):
    """A file of which the record says that we wrote it."""

    path: str
    before: str
    after: str


def read(path: str) -> str | None:
    """What the file says; None where there is none. Raises KernelRefused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KernelRefused(path, error.errno or 0, "cannot read") from error
    try:
        return os.read(fd, _MOST).decode(errors="replace").strip()
    except OSError as error:
        raise KernelRefused(path, error.errno or 0, "cannot read") from error
    finally:
        os.close(fd)


def write(path: str, value: str) -> None:
    """In one write(2), and read back. Raises KernelRefused."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_TRUNC)
        try:
            os.write(fd, f"{value}\n".encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelRefused(path, error.errno or 0, f"cannot write {value!r}") from error
    if (said := read(path)) != value:
        raise KernelRefused(path, 0, f"says {said!r} after {value!r} was written")


def put_back(files: Iterable[Written]) -> int:
    """What they said before us; how many. Files that are gone, or say something else by now, are left alone.

    Raises KernelRefused after all were tried.
    """
    done, refusal = 0, None
    for file in files:
        try:
            if file.before != file.after and read(file.path) == file.after:
                write(file.path, file.before)
                done += 1
        except KernelRefused as error:
            refusal = error
    if refusal is not None:
        raise refusal
    return done
