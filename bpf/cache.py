# SPDX-License-Identifier: Apache-2.0
"""Keeps compiled BPF programs from one start to the next.

Problem: compiling is most of a start: seconds, and 130 MB. Whoever can write what is loaded next can have any program
run in the kernel.

Approach: one file for each thing that was compiled, named by a hash over all that it depends on: the source as one
text, the flags, the header stand-in, the modules that compile, bcc and its libraries, the kernel and its types. Only
root's files in directories that only root can change are read. A file that is not whole, by the hash in its first
line, counts as none: the programs are compiled and it is written anew. What cannot be read or written costs the next
start its seconds and nothing else, and stderr says it.

Where: $FAIRSCHED_BPF_CACHE (an absolute path; empty: nowhere), else a directory ``bpf`` in $STATE_DIRECTORY, which
systemd sets for the unit and which it must have anyway, or in /var/cache/fairsched.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from fairsched import __version__
from fairsched.base.files import replace_file
from fairsched.bpf import btf
from fairsched.bpf.compiled import Compiled
from fairsched.errors import FairschedError

_HERE = Path(__file__).resolve().parent
_HEADERS = _HERE / "headers"
_COMPILING = tuple(_HERE / name for name in ("compiled.py", "compiler.py"))
_LIBRARIES = ("libbcc.so.0", "libclang*.so*", "libLLVM*.so*")
_LIBRARY_PLACES = (Path(f"/usr/lib/{os.uname().machine}-linux-gnu"), Path("/usr/lib64"))
_LEFT_S = 3600
_MAGIC = b"fairsched-bpf "
_MOST_FILES = 16
_MOST_BYTES = 16 << 20
_SUFFIX = ".bin"


def directory() -> Path | None:
    """Where compiled programs are kept; None: nowhere, by the operator's choice."""
    chosen = os.environ.get("FAIRSCHED_BPF_CACHE")
    if chosen is not None:
        return Path(chosen) if os.path.isabs(chosen) else None
    given = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
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
    for part in (__version__, compiler, host.machine, host.release, host.version, *flags, text):
        digest.update(part.encode(errors="surrogateescape") + b"\0")
    try:
        for file in (*_COMPILING, *sorted(path for path in _HEADERS.rglob("*") if path.is_file())):
            digest.update(f"{file.name} ".encode() + file.read_bytes() + b"\0")
        digest.update(btf.read_btf())
    except OSError:
        return None
    except FairschedError:
        pass  # a kernel without type information
    return digest.hexdigest()


def bcc_identity() -> str | None:
    """Which bcc is installed, without importing it, which would cost half of what is saved."""
    spec = importlib.util.find_spec("bcc")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    try:
        said = [(package / name).read_text() for name in ("version.py", "libbcc.py")]
    except (OSError, UnicodeDecodeError):
        return None  # the lattice library of the same name
    libraries = [path for place in _LIBRARY_PLACES for name in _LIBRARIES for path in place.glob(name)]
    return "\n".join([*said, *(f"{path} {_stamp(path)}" for path in sorted(libraries))])


def _stamp(path: Path) -> str:
    """What another file of the same name has differently."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
    return "gone"


def read(key: str | None) -> Compiled | None:
    """What is kept under ``key``; None when nothing is, or not by root alone, or not whole."""
    place = directory()
    if key is None or place is None:
        return None
    try:
        if not place.exists() or not _is_safe(place):
            return None
        # A FIFO would keep whoever opens it waiting.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(place / f"{key}{_SUFFIX}", flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _is_private(status) or status.st_size > _MOST_BYTES:
                return None
            first, _, data = file.read().partition(b"\n")
            os.utime(file.fileno())
        if first != _MAGIC + hashlib.sha256(data).hexdigest().encode():
            return None
        return Compiled.from_bytes(data)
    except (OSError, ValueError):
        return None


def write(key: str | None, compiled: Compiled) -> None:
    """Keep it, if that can be done safely. Raises nothing; on stderr it says why it could not."""
    place = directory()
    if key is None or place is None:
        return
    data = compiled.to_bytes()
    try:
        _make(place)
        if not _is_safe(place):
            return
        first = _MAGIC + hashlib.sha256(data).hexdigest().encode() + b"\n"
        file = place / f"{key}{_SUFFIX}"
        if file.is_dir():
            file.rmdir()
        replace_file(file, first + data, is_durable=False)
        _forget_old(place)
    except OSError as error:
        _say(f"{place}: {error.strerror}")


def _make(place: Path) -> None:
    """With its parents, whatever the umask."""
    for path in (*reversed(place.parents), place):
        if not path.exists():
            path.mkdir()
            path.chmod(0o700 if path == place else 0o755)


def _forget_old(place: Path) -> None:
    """All but the newest, and what a writer left that was killed."""
    by_age = sorted(place.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
    left = [path for path in place.glob(f".*{_SUFFIX}*") if time.time() - path.stat().st_mtime > _LEFT_S]
    for old in (*by_age[_MOST_FILES:], *left):
        old.unlink(missing_ok=True)


def _is_safe(place: Path) -> bool:
    """Whether only we (root) can change what lies in ``place`` or put another in its stead. Raises OSError.

    A way through links is refused: who may change what they lead to would have to be found out, too.
    """
    for path in (place, *place.parents):
        status = path.lstat()
        is_sticky = path != place and bool(status.st_mode & stat.S_ISVTX)
        is_ours = status.st_uid == os.geteuid() or (path != place and status.st_uid == 0)
        if stat.S_ISLNK(status.st_mode):
            _say(f"{path}: is a link; name the directory itself in FAIRSCHED_BPF_CACHE")
            return False
        if not is_ours or (status.st_mode & 0o022 and not is_sticky):
            _say(f"{path}: others may change what is in it; chown root, chmod go-w")
            return False
    return True


def _say(why: str) -> None:
    print(
        f"bpf: compiled programs are not kept, and every start compiles: {why}", file=sys.stderr, flush=True
    )


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
