# SPDX-License-Identifier: Apache-2.0
"""Finds which image a container was made of, in the files that docker, podman and CRI-O keep of it.

The name is what somebody called it, and anybody who may build images may take any name; the id is the digest of its
configuration (``docker image inspect -f '{{.Id}}'``), which holds the digests of its layers. containerd keeps both in
a database: not known. Only of containers that the host made: who lives in one can have another's id in its path.

Source: moby container/container.go (config.v2.json: "Image", "Config.Image"); containers/storage containers.go
(containers.json: "id", "image", and "metadata", a text of JSON with "image-name").
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import stat
from typing import Any, NamedTuple

from fairsched.cgroup.identity import Kind, Layer, layers_of

_MOST_BYTES = 8 << 20
_MOST_ENTRIES = 8192
_MOST_KNOWN = 4096
_ID = re.compile(r"[0-9a-f]{64}")
_NAME_CHARS = 256

logger = logging.getLogger(__name__)


class Image(NamedTuple):
    """What is not known is None."""

    name: str | None = None
    digest: str | None = None
    """``sha256:...``."""


class Images:
    """Call :meth:`of`. ``root``: of the file system, for tests."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._known: dict[str, Image] = {}
        """Of containers, which keep their image while they live."""

    def of(self, cgroup: str) -> Image:
        """The image of the outermost container that the cgroup is in."""
        layer = next((one for one in layers_of(cgroup) if one.is_outer and one.container_id), None)
        key = None if layer is None else layer.container_id
        if layer is None or key is None or not _ID.fullmatch(key):
            return Image()
        if key not in self._known:
            found = self._read(layer, key)
            if found == Image():
                return found  # a runtime may write it in a moment
            while len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return self._known[key]

    def _read(self, layer: Layer, key: str) -> Image:
        try:
            if layer.kind in (Kind.DOCKER, Kind.CONTAINER):
                return self._docker(key)
            if layer.kind in (Kind.PODMAN, Kind.CRIO):
                return self._storage(key)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError, TypeError, AttributeError, KeyError) as error:
            logger.debug("images=failed of=%s why=%r", layer.kind.value, error)
        return Image()

    def _docker(self, key: str) -> Image:
        where = f"{self._root}/var/lib/docker"
        try:
            told = json.loads(_text(f"{self._root}/etc/docker/daemon.json")).get("data-root")
        except (OSError, ValueError, AttributeError):
            told = None
        if isinstance(told, str) and told.startswith("/") and ".." not in told.split("/"):
            where = f"{self._root}{told}"
        document = json.loads(_text(f"{where}/containers/{key}/config.v2.json"))
        return _image(document.get("Config", {}).get("Image"), document.get("Image"))

    def _storage(self, key: str) -> Image:
        for name in ("containers.json", "volatile-containers.json"):
            try:
                text = _text(f"{self._root}/var/lib/containers/storage/overlay-containers/{name}")
            except FileNotFoundError:
                continue
            for one in itertools.islice(json.loads(text), _MOST_ENTRIES):
                if one["id"] == key:
                    told = json.loads(one.get("metadata") or "{}")
                    return _image(told.get("image-name"), one.get("image"))
        return Image()


def _image(name: Any, digest: Any) -> Image:
    digest = digest.removeprefix("sha256:") if isinstance(digest, str) else ""
    return Image(
        name[:_NAME_CHARS] if isinstance(name, str) and name else None,
        f"sha256:{digest}" if _ID.fullmatch(digest) else None,
    )


def _text(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("no plain file")
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError("too long")
    return text
