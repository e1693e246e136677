# SPDX-License-Identifier: Apache-2.0
"""What pods have asked for of ``fairsched.io/gpu-share``: from their specification, and where it is, from the plugin.

A pod's specification says how many shares; which GPUs they are of only the kubelet knows, and the device plugin writes
it down (fairsched/k8s/plugin/placed.py). Without that file a pod weighs as much on each GPU.

Errors: a file that cannot be understood is none; :class:`SharesFile` says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from fairsched.companion.pods.asked import Asked, added
from fairsched.k8s.objects import PodKey, added_up, key_of
from fairsched.k8s.quantity import quantity

RESOURCE = "fairsched.io/gpu-share"
ENV = "FAIRSCHED_SHARES"
"""Names the file to the agent, where there is a device plugin."""
VERSION = 1
MOST_BYTES = 4 << 20
"""Of some thousand pods; some 100 bytes each."""
MOST_SHARES = 1_000_000
"""The largest weight that the configuration takes."""
Placed = Mapping[str, Mapping[str, int]]
"""Shares by NAMESPACE/POD and UUID of a GPU."""


def asked(pod: Mapping[str, Any]) -> int:
    """Shares that a pod has been let have: what its containers ask for, once a kubelet has taken it."""
    if not (pod.get("status") or {}).get("startTime"):
        return 0  # nobody has looked yet whether there are so many
    return min(int(added_up(pod, _limit)), MOST_SHARES)


def _limit(container: Mapping[str, Any]) -> Fraction:
    """Shares are whole ones; the API server takes nothing else."""
    count = quantity(((container.get("resources") or {}).get("limits") or {}).get(RESOURCE) or "0")
    return count if count is not None and count > 0 and count.denominator == 1 else Fraction(0)


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
    """What the pods of a namespace have asked for: what they weigh where nobody says something else."""

    def __init__(self, placed: Placed, claimed: Mapping[PodKey, Asked]) -> None:
        self._placed, self._claimed = placed, claimed
        self._count: dict[str, float] = {}
        self._where: dict[str, Mapping[str, float]] = {}
        self._values: dict[str, Mapping[str, Any]] = {}
        """By pod. A pod's name is its own within its namespace."""

    def has(self, pod: Mapping[str, Any]) -> bool:
        """Whether a claim gave it a GPU, with a share or without."""
        return key_of(pod) in self._claimed

    def add(self, pod: Mapping[str, Any]) -> bool:
        """Whether it has asked for anything."""
        namespace, name = key_of(pod)
        claimed = self._claimed.get((namespace, name), Asked())
        count = asked(pod) + sum(claimed.shares.values())
        self._values[name] = claimed.values
        if count:
            self._count[name] = count
            self._where[name] = added(self._placed.get(f"{namespace}/{name}", {}), claimed.shares)
        return count > 0 or self.has(pod)

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
        """Weights of the children that say none, and of a namespace that says none: all that its pods asked for,
        whatever they say of themselves."""
        for child in children.values():
            self._weigh(child, child.get("pods", ()))
        self._weigh(values, self._count)

    def _weigh(self, node: dict[str, Any], pods: Iterable[str]) -> None:
        names = [name for name in pods if name in self._count]
        if "weight" in node or not names:
            return
        node["weight"] = float(min(sum(self._count[name] for name in names), MOST_SHARES))
        where: dict[str, float] = {}
        for name in names:
            where = added(where, self._where[name])
        is_known = all(math.isclose(sum(self._where[name].values()), self._count[name]) for name in names)
        found = parts(where) if is_known else None
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
