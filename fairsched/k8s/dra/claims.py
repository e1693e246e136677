# SPDX-License-Identifier: Apache-2.0
"""Reads what a ResourceClaim was given, and what it says of it (pure).

The scheduler writes allocations; configuration comes from the DeviceClass, which an administrator writes, and from the
claim, which anybody may write who may make one: it is taken key by key, and refused with the key and the remedy. What
is refused keeps the pod from starting, and the kubelet tells it on the pod.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from fairsched.errors import FairschedError
from fairsched.k8s.dra import DRIVER
from fairsched.k8s.dra.devices import MEMORY, SHARE, GpuFacts, Offer
from fairsched.k8s.quantity import parse

PARAMETERS = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "GpuShare"}
KEYS = {"weight": "weight", "class": "class", "vram-limit": "vram_limit"}
"""Key of the parameters: key of the configuration."""
UID = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z-]{0,63}")
"""Of a claim; it is a part of names of files."""
_SOURCES = ("FromClass", "FromClaim")
"""The later goes before."""
Check = Callable[[str, Any], Any]
"""(key of the configuration, value) -> the value as the configuration has it. Raises ValueError."""


class ClaimError(FairschedError):
    """A claim cannot be prepared; the text says why."""


@dataclass(frozen=True)
class Given:
    """One device that a claim has."""

    request: str
    pool: str
    device: str
    uuid: str
    """Of its GPU."""
    share: float | None
    """Hundredths of it; None: a claim of an administrator, for looking on."""
    memory_bytes: int | None = None
    """It may use so much; None: no limit comes of it."""


@dataclass(frozen=True)
class Prepared:
    """A claim, and what it comes to."""

    uid: str
    namespace: str
    name: str
    given: tuple[Given, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Said by its parameters, as keys of the configuration."""
    mark: str = ""
    """Of the allocation that this was read of: a claim may get another one while it keeps its uid."""

    def shares(self) -> dict[str, float]:
        """By the UUID of the GPU."""
        found: dict[str, float] = {}
        for one in self.given:
            if one.share is not None:
                found[one.uuid] = found.get(one.uuid, 0.0) + one.share
        return found

    def to_plain(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def from_plain(data: Any) -> Prepared:
    """What :meth:`Prepared.to_plain` gave. Raises ValueError."""
    try:
        # Another version may have written it: what it knows beyond is left out.
        names = [one.name for one in fields(Given)]
        given = tuple(Given(**{name: one[name] for name in names if name in one}) for one in data["given"])
        uid, namespace, name, mark = (str(data[key]) for key in ("uid", "namespace", "name", "mark"))
        found = Prepared(uid, namespace, name, given, dict(data["values"]), mark)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a record of a claim: {error!r}") from None
    if not UID.fullmatch(found.uid):
        raise ValueError("not a record of a claim: its uid")
    return found


def read_claim(
    claim: Mapping[str, Any], uid: str, node: str, offers: Mapping[str, Offer], check: Check
) -> Prepared:
    """What the claim of this uid has of `offers`. Raises ClaimError."""
    metadata = claim.get("metadata") or {}
    if not UID.fullmatch(uid) or metadata.get("uid") != uid:
        raise ClaimError("the claim of that name is another one by now")
    allocation = (claim.get("status") or {}).get("allocation")
    if not isinstance(allocation, Mapping):
        raise ClaimError("it has no allocation (any more)")
    devices = allocation.get("devices") or {}
    results = [one for one in devices.get("results") or () if one.get("driver") == DRIVER]
    if not results:
        raise ClaimError(f"nothing of its allocation is of {DRIVER}")
    given = tuple(_given(one, node, offers) for one in results)
    values = _values(devices.get("config") or (), [str(one.get("request")) for one in results], check)
    return Prepared(
        uid, str(metadata.get("namespace")), str(metadata.get("name")), given, values, mark_of(claim)
    )


def mark_of(claim: Mapping[str, Any]) -> str:
    """The same for the same allocation."""
    allocation = (claim.get("status") or {}).get("allocation")
    return hashlib.sha256(json.dumps(allocation, sort_keys=True).encode()).hexdigest()[:16]


def _given(result: Mapping[str, Any], node: str, offers: Mapping[str, Offer]) -> Given:
    pool, device = str(result.get("pool")), str(result.get("device"))
    if pool != node:
        raise ClaimError(f"device {device} is of the pool {pool}, not of this node, {node}")
    offer = offers.get(device)
    if offer is None:
        raise ClaimError(
            f"device {device} is not there (any more): its GPU was lost, split anew or taken out",
            remedy="delete the pod; with another claim it is scheduled anew",
        )
    request = str(result.get("request")).partition("/")[0]
    if result.get("adminAccess"):
        return Given(request, pool, device, offer.gpu.uuid, None)
    consumed = result.get("consumedCapacity") or {}
    share, memory = _consumed(consumed, SHARE), _consumed(consumed, MEMORY)
    memory_bytes = offer.memory_bytes if memory is None else int(memory) or None
    return Given(request, pool, device, offer.gpu.uuid, offer.share if share is None else share, memory_bytes)


def _consumed(consumed: Mapping[str, Any], name: str) -> float | None:
    """A capacity may be written with the driver's domain or without."""
    for key in (name, f"{DRIVER}/{name}"):
        if key in consumed:
            try:
                return float(parse(consumed[key]))
            except ValueError as error:
                raise ClaimError(f"consumedCapacity of {key}: {error}") from None
    return None


# ---- what it says ----


def _values(config: Iterable[Mapping[str, Any]], requests: list[str], check: Check) -> dict[str, Any]:
    """A pod has one weight, class and limit; so must the requests of a claim."""
    entries = sorted(
        (one for one in config if (one.get("opaque") or {}).get("driver") == DRIVER),
        key=lambda one: _SOURCES.index(one["source"]) if one.get("source") in _SOURCES else 0,
    )
    found: list[dict[str, Any]] = []
    for request in requests:
        values: dict[str, Any] = {}
        for entry in entries:
            names = entry.get("requests") or ()
            if not names or request in names or request.partition("/")[0] in names:
                values |= parameters_of(entry["opaque"].get("parameters"), check)
        found.append(values)
    if any(one != found[0] for one in found):
        raise ClaimError(
            "its requests say different things: a pod has one weight, class and vram-limit",
            remedy="leave out `requests` of the configuration, or make a claim of each",
        )
    return found[0]


def parameters_of(parameters: Any, check: Check) -> dict[str, Any]:
    """Opaque parameters as keys of the configuration. Raises ClaimError, which names key and remedy."""
    said = parameters if isinstance(parameters, Mapping) else {}
    kind = {key: said.get(key) for key in PARAMETERS}
    if kind != PARAMETERS:
        raise ClaimError(
            f"parameters: apiVersion and kind are {_shown(kind['apiVersion'])} and {_shown(kind['kind'])}",
            remedy=f"write apiVersion: {PARAMETERS['apiVersion']}, kind: {PARAMETERS['kind']}",
        )
    found: dict[str, Any] = {}
    for key, value in said.items():
        if key in PARAMETERS:
            continue
        if key not in KEYS:
            raise ClaimError(f"parameters: there is no key {_shown(key)}; known: {', '.join(KEYS)}")
        try:
            found[KEYS[key]] = check(KEYS[key], value)
        except ValueError as error:
            raise ClaimError(f"parameters: {key}: {_shown(value)}: {error}") from None
    return found


def _shown(value: Any) -> str:
    return ascii(value)[:80]


def gpus_of(prepared: Prepared, offers: Mapping[str, Offer]) -> dict[str, GpuFacts]:
    """Facts of the GPUs behind a claim, by UUID; without those that are gone."""
    known = {offer.gpu.uuid: offer.gpu for offer in offers.values()}
    return {one.uuid: known[one.uuid] for one in prepared.given if one.uuid in known}
