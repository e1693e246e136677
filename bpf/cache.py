# SPDX-License-Identifier: Apache-2.0
"""Keeps compiled BPF programs from one start to the next.

Problem: compiling is most of a start: seconds, and 130 MB. Whoever can write what is loaded next can have any program
run in the kernel.

Approach: one file for each thing that was compiled, named by a hash over all that it depends on: the source as one
text, the flags, bcc, the kernel and its types. Only root's files in directories that only root can write are read.
A file that is not whole, by the hash in its first line, counts as none: the programs are compiled and it is written
anew. What cannot be written costs the next start its seconds and nothing else.

Where: $FAIRSCHED_BPF_CACHE (empty: nowhere), else a directory ``bpf`` in $CACHE_DIRECTORY, which systemd sets for a
unit with CacheDirectory, or in /var/cache/fairsched.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from fairsched.base.files import replace_file
from fairsched.bpf import btf
from fairsched.bpf.compiled import Compiled
from fairsched.errors import FairschedError

FORMAT = 1
"""Of :class:`Compiled` as bytes; another number finds no file of before."""
_MAGIC = b"fairsched-bpf "
_MOST_FILES = 16
_MOST_BYTES = 16 << 20
_SUFFIX = ".bin"


def directory() -> Path | None:
    """Where compiled programs are kept; None: nowhere, by the operator's choice."""
    chosen = os.environ.get("FAIRSCHED_BPF_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    given = os.environ.get("CACHE_DIRECTORY", "").partition(":")[0]
    return Path(given or "/var/cache/fairsched") / "bpf"


def key_of(text: str, flags: Iterable[str]) -> str | None:
    """A name for what is compiled from ``text`` with ``flags`` here; None where that cannot be told.

    Raises nothing: a host without bcc, or with one that does not say its version, keeps nothing.
    """
    compiler = bcc_identity()
    if compiler is None:
        return None
    digest = hashlib.sha256()
    host = os.uname()
    for part in (str(FORMAT), compiler, host.machine, host.release, host.version, *flags, text):
        digest.update(part.encode(errors="surrogateescape") + b"\0")
    with contextlib.suppress(FairschedError):
        digest.update(btf.read_btf())
    return digest.hexdigest()


def bcc_identity() -> str | None:
    """Which bcc is installed, without importing it, which would cost half of what is saved."""
    spec = importlib.util.find_spec("bcc")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    try:
        files = [package / "version.py", package / "libbcc.py"]
        return "\n".join(f"{file} {file.stat().st_size} {file.read_text()}" for file in files)
    except (OSError, UnicodeDecodeError):
        return None  # the lattice library of the same name


def read(key: str | None) -> Compiled | None:
    """What is kept under ``key``; None when nothing is, or not by root alone, or not whole."""
    place = directory()
    if key is None or place is None:
        return None
    try:
        fd = os.open(place / f"{key}{_SUFFIX}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        is_ours = stat.S_ISREG(status.st_mode) and _is_private(status)
        if not is_ours or status.st_size > _MOST_BYTES or not is_safe(place):
            return None
        first, _, data = file.read().partition(b"\n")
        if first != _MAGIC + hashlib.sha256(data).hexdigest().encode():
            return None
        with contextlib.suppress(OSError):
            os.utime(fd)
    try:
        return Compiled.from_bytes(data)
    except ValueError:
        return None


def write(key: str | None, compiled: Compiled) -> None:
    """Keep it, if that can be done safely. Raises nothing."""
    place = directory()
    if key is None or place is None:
        return
    data = compiled.to_bytes()
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_safe(place):
            return
        first = _MAGIC + hashlib.sha256(data).hexdigest().encode() + b"\n"
        replace_file(place / f"{key}{_SUFFIX}", first + data, is_durable=False)
        by_age = sorted(place.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in by_age[_MOST_FILES:]:
            old.unlink(missing_ok=True)


def is_safe(place: Path) -> bool:
    """Whether only we (root) can change what lies in ``place`` or put another in its stead. Raises OSError."""
    path = place.absolute()
    if not _is_private(path.lstat()) or path.is_symlink():
        return False
    for parent in path.parents:
        status = parent.stat()
        is_sticky = bool(status.st_mode & stat.S_ISVTX)
        if status.st_uid not in (0, os.geteuid()) or (status.st_mode & 0o022 and not is_sticky):
            return False
    return True


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
