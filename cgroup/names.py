# SPDX-License-Identifier: Apache-2.0
"""Finds the names that people gave to containers, pods and users, in the files that runtimes keep of them.

Problem: a path has ids in it, and people know names. The runtimes would tell, but only over sockets that hang, want
credentials and differ by version.

Approach: what each runtime writes down anyway is read: a file for a container of docker, one for all of podman, a
directory for the pods of the kubelet, one for nerdctl, /etc/passwd. A name is asked for by id and remembered by id.
One that is not known is looked for again, ever later, and given up in the end; a failure is counted, and is nothing
worse than an id without a name. :meth:`Names.start` moves the reading beside the loop, which then waits for no disk.

Terms: a *book* is one kind of such files.

Bounds: bytes of a file, entries of a directory, characters of a name, ids remembered. A name that the runtime would not
have allowed is refused: it is printed, logged and compared with patterns. Files are opened without following a link.

Source: moby container/container.go (config.v2.json, "Name"); moby daemon.json ("data-root"); containers/storage
containers.go (containers.json, volatile-containers.json: "id", "names"); kubelet pkg/kubelet/kuberuntime/helpers.go
(/var/log/pods/NAMESPACE_NAME_UID); nerdctl docs/dir.md (names/NAMESPACE/NAME holds the id); passwd(5).
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import logging
import os
import re
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fairsched.base.beside import Poller
from fairsched.base.printable import printable
from fairsched.cgroup.identity import Kind, Layer, layers_of

MOST_BYTES = 1 << 20
"""Of a file about one container."""
MOST_BYTES_OF_ALL = 8 << 20
"""Of a file about all of them."""
MOST_ENTRIES = 8192
"""Of a directory, and of a list."""
MOST_IDS = 16384
"""Remembered; then the oldest are forgotten."""
MOST_SHOWN_CHARS = 160
"""Of what a cgroup is called."""
_FIRST_S, _LAST_S, _TRIES = 0.5, 64.0, 12
"""When an id without a name is looked for again: after twice the time each, some six minutes in all."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
"""Between two looks of the thread, unless it is asked."""

logger = logging.getLogger(__name__)


class Book(enum.Enum):
    """Where names are written."""

    DOCKER = "docker"
    PODMAN = "podman"
    NERDCTL = "nerdctl"
    PODS = "pods"
    USERS = "users"


_ALLOWED = {
    Book.DOCKER: re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}"),
    Book.PODMAN: re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}"),
    Book.NERDCTL: re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}"),
    Book.PODS: re.compile(r"[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9.-]{0,252}"),
    Book.USERS: re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.@-]{0,63}"),
}
_ID = re.compile(r"[0-9a-zA-Z_.-]{1,128}")
"""Of an id that is made part of a path."""


class Names:
    """Call :meth:`of`. ``root``: of the file system, for tests; ``now_s``: a monotonic clock."""

    def __init__(self, root: str = "/", now_s: Callable[[], float] = time.monotonic) -> None:
        self._root, self._now_s = root.rstrip("/"), now_s
        self._lock = threading.Lock()
        """Held for a moment only, never while a file is read."""
        self._known: dict[tuple[Book, str], str] = {}
        self._unknown: dict[tuple[Book, str], tuple[float, int]] = {}
        """When it is looked for again, and how often it was."""
        self._poller: Poller | None = None
        self.version = 0
        """Goes up whenever a name has come that was asked for before."""
        self.failures: Counter[tuple[Book, str]] = Counter()
        """Of reading, by what went wrong."""

    def start(self) -> None:
        """Read beside the caller from now on."""
        if self._poller is None:
            self._poller = Poller("names", self.poll, self._pause_s, "names of containers")

    def _pause_s(self) -> float:
        """Until something is due."""
        with self._lock:
            dues = [at_s for at_s, tries in self._unknown.values() if tries < _TRIES]
        return max(_PAUSE_S, min([_LONGEST_PAUSE_S, *(at_s - self._now_s() for at_s in dues)]))

    @property
    def is_beside(self) -> bool:
        """Whether a thread reads."""
        return self._poller is not None

    def close(self) -> None:
        """End what :meth:`start` began."""
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()

    def of(self, book: Book, key: str) -> str | None:
        """The name of an id; None = not known, or not yet."""
        name = self._known.get((book, key))
        if name is not None:
            return name
        with self._lock:
            if (book, key) not in self._unknown:
                _make_room(self._unknown)
                self._unknown[book, key] = (self._now_s(), 0)
                poller = self._poller
                if poller is not None:
                    poller.ask()
        if not self.is_beside:
            self.poll()
        return self._known.get((book, key))

    def ask_again(self) -> None:
        """Look again for what was given up."""
        with self._lock:
            self._unknown = dict.fromkeys(self._unknown, (self._now_s(), 0))

    def poll(self) -> None:
        """Look for all that is due. Never raises."""
        now_s = self._now_s()
        with self._lock:
            due = [one for one, (at_s, tries) in self._unknown.items() if at_s <= now_s and tries < _TRIES]
        found: dict[tuple[Book, str], str] = {}
        for book in Book:
            keys = [key for which, key in due if which is book]
            # One container whose file is damaged hides no other.
            for some in [[key] for key in keys] if book is Book.DOCKER else [keys] if keys else []:
                found |= {(book, key): name for key, name in self._read(book, some).items()}
        with self._lock:
            for one in due:
                if one in found:
                    self._unknown.pop(one, None)
                    _make_room(self._known)
                    self._known[one] = found[one]
                elif one in self._unknown:
                    tries = self._unknown[one][1] + 1
                    pause_s = min(_LAST_S, _FIRST_S * 2**tries)
                    self._unknown[one] = (now_s + pause_s, tries)
            self.version += bool(found)

    def _read(self, book: Book, keys: list[str]) -> Mapping[str, str]:
        """Names of those of ``keys`` that the book has, of such a form as it may have."""
        found: dict[str, str] = {}
        try:
            for key, name in _READERS[book](self._root, keys):
                if not isinstance(name, str) or not _ALLOWED[book].fullmatch(name):
                    self._fail(book, "a name that is none")
                else:
                    found[key] = name
        except FileNotFoundError:
            pass  # there is no such runtime here, or no such container any more
        except OSError as error:
            self._fail(book, error.strerror or "cannot be read")
        except (ValueError, RecursionError, TypeError, AttributeError, KeyError):
            self._fail(book, "not in the form that is documented")
        return found

    def _fail(self, book: Book, why: str) -> None:
        self.failures[book, why] += 1
        if self.failures[book, why] == 1:
            logger.warning("names=failed of=%s why=%r cost=%r", book.value, why, "ids without a name")


def _make_room(entries: dict[tuple[Book, str], Any]) -> None:
    while len(entries) >= MOST_IDS:
        del entries[next(iter(entries))]


def _docker(root: str, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    where = f"{root}/var/lib/docker"
    try:
        told = json.loads(_text(f"{root}/etc/docker/daemon.json", MOST_BYTES)).get("data-root")
    except (OSError, ValueError, RecursionError, AttributeError):
        told = None
    if isinstance(told, str) and told.startswith("/") and ".." not in told.split("/"):
        where = f"{root}{told}"
    for key in keys:
        if not _ID.fullmatch(key) or key in (".", ".."):
            continue
        try:
            document = json.loads(_text(f"{where}/containers/{key}/config.v2.json", MOST_BYTES))
        except FileNotFoundError:
            continue
        yield key, document["Name"].removeprefix("/")


def _podman(root: str, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    wanted = set(keys)
    for name in ("containers.json", "volatile-containers.json"):
        try:
            text = _text(f"{root}/var/lib/containers/storage/overlay-containers/{name}", MOST_BYTES_OF_ALL)
        except FileNotFoundError:
            continue
        for one in itertools.islice(json.loads(text), MOST_ENTRIES):
            if one["id"] in wanted and one.get("names"):
                yield one["id"], one["names"][0]


def _nerdctl(root: str, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    wanted, left = set(keys), MOST_ENTRIES
    base = f"{root}/var/lib/nerdctl"
    for store in _entries(base):
        for namespace in _entries(f"{base}/{store}/names", is_needed=False):
            for name in _entries(f"{base}/{store}/names/{namespace}", is_needed=False):
                if (left := left - 1) < 0:
                    return
                with contextlib.suppress(OSError, ValueError):
                    key = _text(f"{base}/{store}/names/{namespace}/{name}", 256).strip()
                    if key in wanted:
                        yield key, name


def _pods(root: str, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    wanted = set(keys)
    for entry in _entries(f"{root}/var/log/pods"):
        namespace, _, rest = entry.partition("_")
        name, _, uid = rest.partition("_")
        if uid in wanted:
            yield uid, f"{namespace}/{name}"


def _users(root: str, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    wanted = set(keys)
    for line in _text(f"{root}/etc/passwd", MOST_BYTES).split("\n"):
        fields = line.split(":")
        if len(fields) > 2 and fields[2] in wanted:
            wanted.discard(fields[2])  # the first of two names is the one that getpwuid(3) gives
            yield fields[2], fields[0]


_READERS: Mapping[Book, Callable[[str, Iterable[str]], Iterator[tuple[str, Any]]]] = {
    Book.DOCKER: _docker,
    Book.PODMAN: _podman,
    Book.NERDCTL: _nerdctl,
    Book.PODS: _pods,
    Book.USERS: _users,
}


def _text(path: str, most_bytes: int) -> str:
    """A plain file, whole. Raises OSError, and ValueError where it is something else or too long."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("no plain file")
        chunks, left = [], most_bytes + 1
        while left and (chunk := os.read(fd, left)):
            chunks.append(chunk)
            left -= len(chunk)
    finally:
        os.close(fd)
    if not left:
        raise ValueError("too long")
    return b"".join(chunks).decode()


def _entries(path: str, *, is_needed: bool = True) -> list[str]:
    """What is in a directory, so far as is looked. Raises OSError."""
    try:
        with os.scandir(path) as found:
            return [entry.name for entry in itertools.islice(found, MOST_ENTRIES)]
    except (FileNotFoundError, NotADirectoryError):
        if is_needed:
            raise
        return []


_shared = Names()


def shared() -> Names:
    """The names of this host: whoever asks in this process asks the same ones."""
    return _shared


_BOOKS: Mapping[Kind, tuple[Book, ...]] = {
    Kind.DOCKER: (Book.DOCKER,),
    Kind.PODMAN: (Book.PODMAN,),
    Kind.CONTAINERD: (Book.NERDCTL,),
    Kind.CONTAINER: (Book.DOCKER, Book.NERDCTL),
}


def name_of(layer: Layer, names: Names) -> tuple[Book, str] | None:
    """The name of a container, a pod or a user, and where it is from. Only of what the host made: who lives in a
    layer could have another's id in its path, and so another's name."""
    if not layer.is_outer:
        return None
    if layer.pod_uid is not None and layer.kind is not Kind.PODMAN:
        asked = [(Book.PODS, layer.pod_uid)]
    elif layer.kind is Kind.USER:
        asked = [(Book.USERS, str(layer.user_id))]
    else:
        asked = [(book, layer.container_id or "") for book in _BOOKS.get(layer.kind, ())]
    for book, key in asked:
        name = names.of(book, key)
        if name is not None:
            return book, name
    return None


def known_as(cgroup: str, names: Names) -> str | None:
    """What people call the thing a cgroup is, with what kind it is: ``docker chat``, ``pod ml/llama-0``,
    ``job 3385.0``, ``unit chat.service``, ``user alice``. None: no name is known, or it is nothing of these."""
    best = None
    for layer in itertools.takewhile(lambda layer: layer.is_outer, layers_of(cgroup)):
        best = _called(layer, names) or best
    return None if best is None else printable(best)[:MOST_SHOWN_CHARS]


def _called(layer: Layer, names: Names) -> str | None:
    if layer.kind is Kind.SLURM:
        step = "" if layer.step is None else f".{layer.step}"
        return None if layer.job is None else f"job {layer.job}{step}"
    if layer.kind is Kind.UNIT and layer.user_id is None:
        return f"unit {layer.unit}"
    if layer.name is not None:
        return f"{layer.kind.value} {layer.name}"
    found = name_of(layer, names)
    if found is not None:
        kinds = {Book.PODS: "pod", Book.USERS: "user", Book.NERDCTL: "containerd"}
        return f"{kinds.get(found[0], found[0].value)} {found[1]}"
    return f"user {layer.user_id}" if layer.kind is Kind.USER else None
