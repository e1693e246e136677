# SPDX-License-Identifier: Apache-2.0
"""What pods have by what they asked of the scheduler, as defaults of what they say themselves (pure).

Problem. A pod that was given 75 hundredths of a GPU by a claim has said what it is worth; nobody should have to say it
again as an annotation. Its namespace has to be worth what its pods got, or two of them would divide a GPU in halves
whatever was asked.

Approach. A source says what each pod has on which GPU (:class:`Asked`), :func:`joined` adds sources up, and policy.py
takes it like shares of ``fairsched.io/gpu-share`` (shares.py): they add up, a pod weighs on each GPU its shares of that
GPU, a namespace that says no weight weighs what its pods have. What a claim says of a weight beyond its share divides
the namespace's part and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.k8s.objects import PodKey


@dataclass(frozen=True)
class Asked:
    """Of one pod."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """Hundredths, by the UUID of the GPU or MIG instance."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Other defaults, as keys of the configuration."""


Source = Callable[[Iterable[Mapping[str, Any]]], Mapping[PodKey, Asked]]
"""(pods of the node as the API server has them) -> what those have who asked for anything."""


def joined(sources: Iterable[Mapping[PodKey, Asked]]) -> dict[PodKey, Asked]:
    """What several sources say together: shares add up, of other values the first goes before."""
    found: dict[PodKey, Asked] = {}
    for source in sources:
        for key, asked in source.items():
            before = found.get(key, Asked())
            found[key] = Asked(added(before.shares, asked.shares), {**asked.values, **before.values})
    return found


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Shares by GPU, together."""
    return {uuid: one.get(uuid, 0) + other.get(uuid, 0) for uuid in {**one, **other}}
