# SPDX-License-Identifier: Apache-2.0
"""Any file on any cluster: plans come to rest, change nothing of others, and go back. Against a model of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.k8s.pools.fields import MANAGER
from fairsched.k8s.pools.plan import Act
from fairsched.k8s.pools.words import as_diff
from tests.unit.k8s.pools.model import Model
from tests.unit.k8s.pools.scene import (
    PRIORITY,
    QUOTA,
    apply,
    back,
    errors,
    gpus,
    label,
    node,
    planned,
    pools,
    saved,
    taint,
)

_KEYS = st.sampled_from(["accelerator", "workload", "team", "mig", "zone"])
_VALUES = st.sampled_from(["a", "b", ""])
_EFFECTS = st.sampled_from(["NoSchedule", "NoExecute"])
_TAINTS = st.lists(
    st.builds(taint, st.sampled_from("xy"), st.sampled_from(["", "1", "2"]), _EFFECTS),
    max_size=3,
    unique_by=lambda one: (one["key"], one["effect"]),
)
_POOL = st.fixed_dictionaries(
    {"nodes": st.fixed_dictionaries({"names": st.sampled_from(["n1", "n*", "n2"])})},
    optional={
        "workload": _VALUES,
        "labels": st.dictionaries(st.sampled_from(["team", "zone"]), _VALUES),
        "taints": _TAINTS,
        "mig_config": _VALUES,
    },
)
_AMOUNTS = st.dictionaries(st.sampled_from(["pods", "secrets"]), st.integers(0, 3), min_size=1)
_WISH = st.fixed_dictionaries(
    {},
    optional={
        "pools": st.dictionaries(st.sampled_from(["p", "q"]), _POOL),
        "namespaces": st.dictionaries(st.just("ml"), st.fixed_dictionaries({"quota": _AMOUNTS})),
        "priority_classes": st.dictionaries(
            st.just("gpu"),
            st.fixed_dictionaries({"value": st.integers(1, 2)}, optional={"description": _VALUES}),
        ),
    },
)
_PRODUCTS = st.sampled_from([None, "NVIDIA-L4", "Tesla-T4"])


@st.composite
def clusters(draw: st.DrawFn) -> Model:
    model = Model()
    for name in ("n1", "n2"):
        found = draw(_PRODUCTS)
        words = draw(st.dictionaries(_KEYS, _VALUES))
        node(model, name, taints=draw(_TAINTS), **({} if found is None else gpus(found, 2)), **words)
    if draw(st.booleans()):
        hard = {key: str(value) for key, value in draw(_AMOUNTS).items()}
        model.put(QUOTA, {"metadata": {"name": "fairsched-pools", "namespace": "ml"}, "spec": {"hard": hard}})
    if draw(st.booleans()):
        model.put(PRIORITY, {"metadata": {"name": "gpu"}, "value": draw(st.integers(1, 2))})
    return model


def owned_by(model: Model, is_ours: bool) -> dict[tuple[str, tuple[str, ...]], Any]:
    """Values of fields that somebody beside us owns, taints apart."""
    found = {}
    for path, owners in model.owned.items():
        for (manager, _), fields in owners.items():
            for at in fields:
                if (manager == MANAGER) is is_ours and at != ("spec", "taints"):
                    value: Any = model.objects[path]
                    for key in at:
                        value = value[key]
                    found[path, at] = value
    return found


@settings(max_examples=150, deadline=None)
@given(clusters(), _WISH, _WISH, st.booleans())
def test_plans_come_to_rest_change_nothing_of_others_and_go_back(
    model: Model, first: dict[str, Any], second: dict[str, Any], force: bool
) -> None:
    start, theirs = saved(model), owned_by(model, False)
    for words in (first, second):
        wish = pools(**words)
        diff = list(as_diff(planned(model, wish)))
        outcomes = apply(model, wish, force=force)
        writes = model.writes
        again = apply(model, wish, force=force)
        assert model.writes == writes, "a second time nothing is written"
        assert errors(again) == errors(outcomes)
        if not errors(outcomes) and not any(one.step.act is Act.LEAVE for one in outcomes):
            assert [step for step in planned(model, wish) if step.is_difference] == []
        if not diff:
            assert not any(one.step.is_difference for one in outcomes)
    if not force:
        assert {at: value for at, value in owned_by(model, False).items() if at in theirs} == theirs
    assert errors(back(model, start)) == []
    if not force:
        assert saved(model) == start
    writes = model.writes
    assert [one.step.act for one in back(model, start) if one.step.act is not Act.LEAVE] == []
    assert model.writes == writes


@settings(max_examples=100, deadline=None)
@given(clusters(), _WISH, st.sampled_from([apply, label]))
def test_one_forced_change_can_be_taken_back_exactly(
    model: Model, words: dict[str, Any], do: Callable[..., Any]
) -> None:
    start = saved(model)
    wish = pools(**words)
    apply(model, wish, force=True) if do is apply else label(model, wish)
    assert errors(back(model, start)) == []
    assert saved(model) == start
