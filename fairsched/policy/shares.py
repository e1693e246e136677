# SPDX-License-Identifier: Apache-2.0
"""Computes the entitlement: which part of one GPU each tenant with demand is owed.

Problem. Tenants were promised weights, some also a floor (``min_ratio``) or a ceiling
(``quota_ratio``), and tenants nest (``team/chat`` is a child of ``team``). Only those with demand
count: whatever the others leave is shared out, so the GPU is never kept for somebody absent.

Approach. Build the tree of the active names and share the GPU out from the root. Among siblings

    e_i = clamp(level x w_i, low_i, high_i)     with one level such that  sum(e_i) = what the parent got

which is water-filling between two banks: a capped tenant's surplus raises the level of the rest, a
guaranteed tenant's floor lowers it. The level falls when any weight rises, hence raising a weight
never lowers its owner's part and never raises a sibling's.

Terms. low = max(own min, sum of the children's low), limited by high. high = min(own quota, sum of
the children's high, 1). Floors that do not fit together (sum > what there is) are scaled alike.
If every sibling is capped the rest is owed to nobody and the sum stays below 1.
The tenant class plays no part here: it decides who is held first, not who is owed what.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairsched.model import TenantSpec

SEPARATOR = "/"
_LEAST_WEIGHT = 1e-9
"""A weight of 0 would be starvation by configuration; the law promises there is none."""


@functools.lru_cache(maxsize=4096)
def ancestors(name: str) -> tuple[str, ...]:
    """The name itself and every tenant above it, nearest first: a/b/c, a/b, a."""
    parts = name.split(SEPARATOR)
    return tuple(SEPARATOR.join(parts[:depth]) for depth in range(len(parts), 0, -1))


def spec_for(name: str, specs: Mapping[str, TenantSpec]) -> TenantSpec:
    """The spec of a tenant; one that is not configured gets weight 1 and what it inherits.

    Class, longest hold and exemption are inherited; quota, min and vram_limit are not, since they already
    bind the parent as a whole.
    """
    known = specs.get(name)
    if known is not None:
        return known
    for above in ancestors(name)[1:]:
        if above in specs:
            own = replace(specs[above], name=name, weight=1.0, quota_ratio=None, min_ratio=0.0)
            return replace(own, vram_limit_bytes=None, gpu_parts=())
    return TenantSpec(name)


def entitlements(
    active: Iterable[str], specs: Mapping[str, TenantSpec], gpu: str | None = None
) -> dict[str, float]:
    """Part of the GPU owed to each name in ``active`` (leaves with demand); sums to 1 unless capped.

    ``gpu``: which one, for those that weigh something else on some GPUs.
    """
    names = sorted(set(active))
    plain = _plain_weights(names, specs, gpu)
    if plain is not None:
        total = math.fsum(plain)
        return {name: weight / total for name, weight in zip(names, plain, strict=True)}
    root = _Node()
    for name in names:
        _insert(root, name, specs, gpu)
    _bound(root)
    owed: dict[str, float] = {}
    _share_out(root, 1.0, owed)
    return owed


def _plain_weights(
    names: Sequence[str], specs: Mapping[str, TenantSpec], gpu: str | None
) -> list[float] | None:
    """The weights where nothing but weights matters (the usual node, asked fifty times a second)."""
    weights = []
    for name in names:
        spec = specs.get(name)
        if spec is None or SEPARATOR in name or spec.min_ratio or spec.quota_ratio is not None:
            return None
        weights.append(max(spec.weight_on(gpu), _LEAST_WEIGHT))
    return weights


def divide(total: float, claims: Sequence[tuple[float, float, float]]) -> list[float]:
    """Water-fill ``total`` over claims (weight, low, high); see the formula in the module docstring."""
    if not claims:
        return []
    sum_low = math.fsum(low for _, low, _ in claims)
    if sum_low >= total:
        return [low * total / sum_low if sum_low else 0.0 for _, low, _ in claims]
    if math.fsum(high for _, _, high in claims) <= total:
        return [high for _, _, high in claims]
    level = _level(total, claims)
    return [_clamp(level * weight, low, high) for weight, low, high in claims]


def _level(total: float, claims: Sequence[tuple[float, float, float]]) -> float:
    """Solve sum(clamp(level x w, low, high)) = total; the sum is piecewise linear in the level.

    Bisect over the bends (where a claim meets a bank) for the last one that does not overfill, then
    solve the straight piece above it exactly.
    """
    bends = sorted({bank / weight for weight, low, high in claims for bank in (low, high)} | {0.0})
    below, above = 0, len(bends) - 1
    while above - below > 1:
        middle = (below + above) // 2
        filled = math.fsum(_clamp(bends[middle] * w, low, high) for w, low, high in claims)
        if filled <= total:
            below = middle
        else:
            above = middle
    floor = bends[below]
    moving = [w for w, low, high in claims if low / w <= floor < high / w]
    fixed = math.fsum(_clamp(floor * w, low, high) for w, low, high in claims)
    return floor + (total - fixed) / math.fsum(moving) if moving else floor


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


@dataclass
class _Node:
    """One name of the active tree; ``leaf`` is the tenant whose work hangs here, if any."""

    weight: float = 1.0
    low: float = 0.0
    high: float = 1.0
    leaf: str | None = None
    children: dict[str, _Node] = field(default_factory=dict)


def _insert(root: _Node, name: str, specs: Mapping[str, TenantSpec], gpu: str | None) -> None:
    node = root
    for path in reversed(ancestors(name)):
        if path not in node.children:
            spec = spec_for(path, specs)
            quota = 1.0 if spec.quota_ratio is None else _clamp(spec.quota_ratio, 0.0, 1.0)
            low = _clamp(spec.min_ratio, 0.0, quota)
            node.children[path] = _Node(max(spec.weight_on(gpu), _LEAST_WEIGHT), low, quota)
        node = node.children[path]
    node.leaf = name


def _bound(node: _Node) -> None:
    """Carry floors and ceilings from the leaves up."""
    for child in node.children.values():
        _bound(child)
    if node.leaf is not None and node.children:
        # Work directly in a tenant that also has children competes with them as one more child.
        node.children[SEPARATOR] = _Node(leaf=node.leaf)
        node.leaf = None
    if node.children:
        node.high = min(node.high, math.fsum(child.high for child in node.children.values()))
        node.low = min(max(node.low, math.fsum(c.low for c in node.children.values())), node.high)


def _share_out(node: _Node, total: float, owed: dict[str, float]) -> None:
    if node.leaf is not None:
        owed[node.leaf] = total
        return
    children = list(node.children.values())
    parts = divide(total, [(child.weight, child.low, child.high) for child in children])
    for child, part in zip(children, parts, strict=True):
        _share_out(child, part, owed)
