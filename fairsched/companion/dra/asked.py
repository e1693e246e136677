# SPDX-License-Identifier: Apache-2.0
"""Which pods use which claims, and what they have by them (pure).

A pod names its claims, or the templates that one is made of for it; its status says which. Several pods that use one
claim have a part of it each, in equal parts, as long as they live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairsched.companion.pods.asked import Asked
from fairsched.k8s.dra.claims import Prepared
from fairsched.k8s.objects import PodKey, is_over, key_of

ClaimKey = tuple[str, str]
"""(namespace, name)"""


def asked_by_claims(pods: Iterable[Mapping[str, Any]], prepared: Iterable[Prepared]) -> dict[PodKey, Asked]:
    """What each pod of the node has by the claims that are prepared here."""
    claims = {(one.namespace, one.name): one for one in prepared}
    users: dict[ClaimKey, list[PodKey]] = {}
    for pod in pods:
        if is_over(pod):
            continue
        key = key_of(pod)
        for name in claims_of(pod):
            if (key[0], name) in claims and key not in users.setdefault((key[0], name), []):
                users[key[0], name].append(key)
    found: dict[PodKey, list[Asked]] = {}
    for claim, keys in users.items():
        for key in keys:
            found.setdefault(key, []).append(_part(claims[claim], len(keys)))
    return {key: _sum(parts) for key, parts in found.items()}


def claims_of(pod: Mapping[str, Any]) -> Iterator[str]:
    """Names of the claims of a pod, in its order."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    made = {one.get("name"): one.get("resourceClaimName") for one in statuses}
    for one in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = one.get("resourceClaimName") or made.get(one.get("name"))
        if name:
            yield str(name)


def _part(claim: Prepared, users: int) -> Asked:
    shares = {uuid: share / users for uuid, share in claim.shares().items()}
    values = dict(claim.values)
    memory: dict[str, int] = {}
    for one in claim.given:
        if one.memory_bytes is not None:
            memory[one.uuid] = memory.get(one.uuid, 0) + one.memory_bytes
    if memory:
        values.setdefault("vram_limit", max(1, min(memory.values()) // users))
    return Asked(shares, values)


def _sum(parts: list[Asked]) -> Asked:
    """Shares and memory add up; of what else claims say the first goes before."""
    shares: dict[str, float] = {}
    values: dict[str, Any] = {}
    for part in parts:
        for uuid, share in part.shares.items():
            shares[uuid] = shares.get(uuid, 0.0) + share
        values = {**part.values, **values}
    limits = [part.values["vram_limit"] for part in parts if "vram_limit" in part.values]
    if len(limits) > 1 and all(isinstance(one, int) for one in limits):
        values["vram_limit"] = sum(limits)
    return Asked(shares, values)
