# SPDX-License-Identifier: Apache-2.0
"""Policies, namespaces and pods as the API server has them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def policy(name: str, *, names: Any = None, selector: Any = None, **spec: Any) -> dict[str, Any]:
    """``names`` or ``selector`` of namespaces; by default all."""
    spaces = {"names": names} if names is not None else {"selector": selector if selector is not None else {}}
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "generation": 1, "resourceVersion": "1"},
        "spec": {"namespaces": spaces, **spec},
    }


def space(name: str = "ml", labels: Any = None, **said: str) -> dict[str, Any]:
    annotations = {f"fairsched.io/{key.replace('_', '-')}": value for key, value in said.items()}
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "labels": labels or {}, "annotations": annotations}
    }


def pod(
    name: str, namespace: str = "ml", *, labels: Any = None, gpu: bool = True, **said: str
) -> dict[str, Any]:
    annotations = {f"fairsched.io/{key.replace('_', '-')}": value for key, value in said.items()}
    limits = {"nvidia.com/gpu": "1"} if gpu else {}
    return {
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"u-{name}",
            "labels": labels or {}, "annotations": annotations,
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }  # fmt: skip


# ---- any ----

NAMES = st.sampled_from(["a", "b", "c", "d"])
LABELS = st.dictionaries(st.sampled_from(["team", "tier"]), st.sampled_from(["x", "y"]), max_size=2)
EXPRESSION = st.one_of(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["team", "tier"]),
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2),
        }
    ),
    st.fixed_dictionaries(
        {"key": st.sampled_from(["team", "tier"]), "operator": st.sampled_from(["Exists", "DoesNotExist"])}
    ),
)
SELECTOR = st.one_of(
    st.fixed_dictionaries({"matchLabels": LABELS}),
    st.fixed_dictionaries({"matchExpressions": st.lists(EXPRESSION, min_size=1, max_size=2)}),
)
PERCENT = st.integers(0, 100).map(lambda value: f"{value}%")
VALUES = {
    "weight": st.sampled_from([0.1, 1.0, 2.0, 50.0]),
    "class": st.sampled_from(["latency", "batch"]),
    "quota": PERCENT,
    "min": st.sampled_from(["0%", "10%", "25%", "60%"]),
    "vramLimit": st.sampled_from(["1GiB", "8GiB", "500MB"]),
}
RULE = st.fixed_dictionaries(
    {}, optional={"selector": SELECTOR, "max": st.fixed_dictionaries({}, optional=VALUES), **VALUES}
)


@st.composite
def any_policy(draw: Any, name: str) -> dict[str, Any]:
    """Also one that the API server would refuse: its definition may be another one."""
    spec: dict[str, Any] = {"priority": draw(st.integers(0, 2))}
    if draw(st.booleans()):
        spec["share"] = draw(st.fixed_dictionaries({}, optional=VALUES))
    if draw(st.booleans()):
        spec["pods"] = draw(st.lists(RULE, max_size=3))
    if draw(st.booleans()):
        return policy(name, names=draw(st.lists(NAMES, min_size=1, max_size=2, unique=True)), **spec)
    return policy(name, selector=draw(st.one_of(st.just({}), SELECTOR)), **spec)


SAID = st.dictionaries(
    st.sampled_from(["weight", "quota", "min", "class", "vram-limit", "tenant"]),
    st.sampled_from(
        [
            "0.5",
            "3",
            "1000000",
            "1e309",
            "50%",
            "0%",
            "100%",
            "batch",
            "latency",
            "8GiB",
            "1GiB",
            "a",
            "p1",
            "*",
            "",
        ]
    ),
    max_size=4,
)


@st.composite
def any_pod(draw: Any, name: str) -> dict[str, Any]:
    """Its annotations and its labels are of whoever makes it, ours among the labels."""
    said, labels = draw(SAID), {**draw(LABELS), **{f"fairsched.io/{k}": v for k, v in draw(SAID).items()}}
    return pod(
        name, draw(NAMES), labels=labels, **{key.replace("-", "_"): value for key, value in said.items()}
    )
