# SPDX-License-Identifier: Apache-2.0
"""Kueue's objects become teams with weights, and an annotation that is read as it was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.k8s.teams.queues import (
    LEAST,
    MOST,
    Queue,
    amount,
    nominal_weight,
    nominal_weights,
    queues_of,
    teams_of,
    text_of_queues,
)


def cluster_queue(name: str = "research", *, weight: Any = None, quota: Any = None) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if weight is not None:
        spec["fairSharing"] = {"weight": weight}
    if quota is not None:
        resources = [{"name": "nvidia.com/gpu", "nominalQuota": quota}, {"name": "cpu", "nominalQuota": "64"}]
        spec["resourceGroups"] = [{"flavors": [{"name": "gpu", "resources": resources}]}]
    return {"metadata": {"name": name}, "spec": spec}


def local_queue(name: str, namespace: str, team: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": team}}


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("3", 3), ("500m", 0.5), ("1.5k", 1500), ("2Ki", 2048), ("1e3", 1000), ("1E3", 1000), ("2E", 2e18), (4, 4),
        (".5", 0.5), ("0", 0), ("", None), ("-1", None), ("m", None), ("three", None), ("1..2", None), (None, None),
        ("1e999", None), ("1K", None), ("nan", None), ({}, None),
    ],
)  # fmt: skip
def test_quantities_are_read_as_kubernetes_writes_them(text: Any, is_so: float | None) -> None:
    assert amount(text) == is_so


@pytest.mark.parametrize(
    ("one", "weight"),
    [
        (cluster_queue(weight="3"), 3),
        (cluster_queue(weight="3", quota=8), 3),
        (cluster_queue(quota="8"), 8),
        (cluster_queue(quota="0"), 1),
        (cluster_queue(), 1),
        (cluster_queue(weight="0"), LEAST),
        (cluster_queue(weight="1e-9"), LEAST),
        (cluster_queue(weight="5E"), MOST),
        ({"metadata": {"name": "odd"}, "spec": {"fairSharing": "much", "resourceGroups": {"flavors": 7}}}, 1),
        ({"metadata": {"name": "odd"}, "spec": {"resourceGroups": [{"flavors": [{"resources": [7]}]}]}}, 1),
    ],
)
def test_a_team_weighs_what_its_cluster_queue_says(one: dict[str, Any], weight: float) -> None:
    assert nominal_weight(one) == weight


def test_queues_are_told_by_namespace_and_those_that_lead_nowhere_are_nobodys() -> None:
    weights = nominal_weights([cluster_queue("research", weight="1"), cluster_queue("serving", weight="3")])
    found = teams_of(
        [
            local_queue("a", "ml", "research"),
            local_queue("b", "ml", "serving"),
            local_queue("c", "web", "gone"),
            {"metadata": {"name": "odd", "namespace": "web"}},
        ],
        weights,
    )
    assert found == {"ml": {"a": Queue("research", 1), "b": Queue("serving", 3)}}


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?", fullmatch=True)


@settings(deadline=None)
@given(st.dictionaries(NAMES, st.builds(Queue, NAMES, st.floats(LEAST, MOST)), max_size=8))
def test_an_annotation_is_read_as_it_was_written(queues: dict[str, Queue]) -> None:
    found = queues_of(text_of_queues(queues))
    assert found is not None and found.keys() == queues.keys()
    for name, one in queues.items():
        assert found[name].team == one.team and found[name].weight == pytest.approx(one.weight, rel=1e-3)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_is_too_odd_to_be_looked_at(text: str) -> None:
    queues = queues_of(text)
    assert queues is None or all(LEAST <= one.weight <= MOST for one in queues.values())


@pytest.mark.parametrize(
    "text", ["a", "a=b", "a=:1", "=b:1", "a=b:0", "a=b:-1", "a=b:1e9", "a=b:x", "a=b:1,", ","]
)
def test_what_this_program_does_not_write_is_not_read(text: str) -> None:
    assert queues_of(text) is None
