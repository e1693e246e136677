# SPDX-License-Identifier: Apache-2.0
"""What pods were given of ``fairsched.io/gpu-share``, and of which GPUs: as the device plugin has it of the kubelet.

The plugin writes it down (fairsched/k8s/plugin/placed.py). What a pod's specification asks for is nobody's word but its
maker's: a kubelet that knows no such resource runs a pod that names its node itself and asks for a million.

Errors: a file that cannot be understood is none; :class:`SharesFile` says why.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from fairsched.companion.pods.asked import Asked, added
from fairsched.k8s.objects import PodKey, key_of

ENV = "FAIRSCHED_SHARES"
"""Names the file to the agent, where there is a device plugin."""
VERSION = 1
MOST_BYTES = 4 << 20
"""Of some thousand pods; some 100 bytes each."""
MOST_SHARES = 1_000_000
"""The largest weight that the configuration takes."""
Placed = Mapping[str, Mapping[str, int]]
"""Shares by NAMESPACE/POD and UUID of a GPU."""


def parts(shares: Mapping[str, float]) -> dict[str, float] | None:
    """The part of it that is on each GPU; None where all of it is on one."""
    total = sum(shares.values())
    return {uuid: count / total for uuid, count in sorted(shares.items())} if len(shares) > 1 else None


def parse(text: str) -> Placed:
    """What the plugin has written. Raises ValueError."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError("it is of another version")
    found: dict[str, dict[str, int]] = {}
    for pod, shares in document["pods"].items():
        found[pod] = {uuid: count for uuid, count in shares.items() if count > 0}
        if not all(isinstance(count, int) and isinstance(uuid, str) for uuid, count in shares.items()):
            raise ValueError(f"{pod}: no shares")
    return found


class Shares:
    """What the pods of a namespace were given: what they weigh where nobody says something else."""

    def __init__(self, placed: Placed, claimed: Mapping[PodKey, Asked]) -> None:
        self._placed, self._claimed = placed, claimed
        self._where: dict[str, Mapping[str, float]] = {}
        self._values: dict[str, Mapping[str, Any]] = {}
        """By pod. A pod's name is its own within its namespace."""

    def has(self, pod: Mapping[str, Any]) -> bool:
        """Whether a claim gave it a GPU, with a share or without."""
        return key_of(pod) in self._claimed

    def add(self, pod: Mapping[str, Any]) -> bool:
        """Whether it was given anything."""
        namespace, name = key_of(pod)
        claimed = self._claimed.get((namespace, name), Asked())
        self._values[name] = claimed.values
        where = added(self._placed.get(f"{namespace}/{name}", {}), claimed.shares)
        if sum(where.values()) > 0:
            self._where[name] = where
        return name in self._where or self.has(pod)

    def fill(self, children: Mapping[str, dict[str, Any]], teams: Container[str]) -> None:
        """What claims say of children that say nothing else; of several pods, the first that says it.

        ``teams``: children that are a team's: no claim says what these weigh, as it is written by who makes pods.
        """
        for key, child in children.items():
            for name in child.get("pods", ()):
                for word, value in self._values.get(name, {}).items():
                    if word != "weight" or key not in teams:
                        child.setdefault(word, value)

    def weigh(self, values: dict[str, Any], children: Mapping[str, dict[str, Any]]) -> None:
        """Weights of the children that say none, and of a namespace that says none: all that its pods were
        given, whatever they say of themselves."""
        for child in children.values():
            self._weigh(child, child.get("pods", ()))
        self._weigh(values, self._where)

    def _weigh(self, node: dict[str, Any], pods: Iterable[str]) -> None:
        where: dict[str, float] = {}
        for name in pods:
            where = added(where, self._where.get(name, {}))
        if "weight" in node or not where:
            return
        node["weight"] = float(min(sum(where.values()), MOST_SHARES))
        found = parts(where)
        if found is not None:
            node["gpu_parts"] = found


class SharesFile:
    """The file, read again when it has changed."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.trouble: str | None = None
        self._placed: Placed = {}
        self._seen: tuple[int, int] | None = None

    def is_changed(self) -> bool:
        """Whether it is another than the one that was read last."""
        return self._stamp() != self._seen

    def read(self) -> Placed:
        """What it says; nothing where it is not there, what it said before where it makes no sense."""
        stamp = self._stamp()
        if stamp == self._seen:
            return self._placed
        self._seen, self.trouble = stamp, None
        if self.path is None or stamp is None:
            self._placed = {}
            return self._placed
        try:
            with open(self.path, "rb") as file:
                self._placed = parse(file.read(MOST_BYTES).decode())
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            self.trouble = f"{self.path}: {error}"
        return self._placed

    def _stamp(self) -> tuple[int, int] | None:
        if self.path is None:
            return None
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
