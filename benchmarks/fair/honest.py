# SPDX-License-Identifier: Apache-2.0
"""Whose steps a table of latencies is about: the worst honest tenant.

Problem. The longest steps are those of the greedy tenant. They wait behind its own queue, and a scheduler that gives
it no more than its share makes that queue longer. So the worst tenant's latency says how greedy a tenant was, and
nothing about the tenants that a scheduler protects.

Approach. The scenario file decides, and no measurement does: so no policy chooses by whom it is judged. The figure
is the 99th percentile of each honest tenant, its mean over the seeds, and of those the largest. The latency of all
tenants stays in the tables beside it.

Terms. steps in flight: processes x contexts x queue depth, of all loads of a tenant. greedy: may have more than one
step in flight. hostile: marked ``is_hostile``. honest: neither; it waits for each step before it begins the next.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.fair import scenario as scenario_files
from benchmarks.fair.results import Document, leaf_values
from benchmarks.fair.scenario import Tenant
from benchmarks.stats import Spread, spread

STEP_P99 = "step_p99_honest_ms"
"""The figure's name in tables."""
OF_LEAF = "step_p99_ms"
"""The figure of a leaf that it is made of."""


def steps_in_flight(tenant: Tenant) -> int:
    """At most, at a time."""
    return sum(load.processes * load.contexts * load.queue_depth for load in tenant.loads)


def is_honest(tenant: Tenant) -> bool:
    """Neither hostile nor greedy."""
    return not tenant.is_hostile and steps_in_flight(tenant) <= 1


@functools.cache
def leaves_of(scenario: str, directory: Path = scenario_files.DIRECTORY) -> frozenset[str]:
    """The honest leaves of a shipped scenario; empty for a scenario whose file lies elsewhere."""
    path = directory / f"{scenario}.yaml"
    if not path.exists():
        return frozenset()
    leaves = scenario_files.load(path).leaves()
    return frozenset(leaf for leaf, tenant in leaves.items() if is_honest(tenant))


def worst(scenario: str, of_leaves: Mapping[str, Spread | None]) -> Spread | None:
    """Of a figure of the leaves that of the honest leaf with the largest mean; None where there is none."""
    honest = leaves_of(scenario)
    known = [value for leaf, value in of_leaves.items() if leaf in honest and value is not None]
    return max(known, key=lambda value: value.mean, default=None)


def step_p99(documents: Sequence[Document]) -> Spread | None:
    """Of runs of one scenario under one policy."""
    if not documents:
        return None
    runs = [leaf_values(document, OF_LEAF) for document in documents]
    leaves = dict.fromkeys(leaf for run in runs for leaf in run)
    return worst(documents[0]["scenario"], {leaf: spread(run.get(leaf) for run in runs) for leaf in leaves})
