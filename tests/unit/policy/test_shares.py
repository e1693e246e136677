# SPDX-License-Identifier: Apache-2.0
"""Entitlement as a pure function: cases with their arithmetic, then the laws as properties."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model import TenantClass, TenantSpec
from fairsched.policy.shares import divide, entitlements, spec_for


def specs(*given_specs: TenantSpec) -> dict[str, TenantSpec]:
    return {spec.name: spec for spec in given_specs}


def weights(**by_name: float) -> dict[str, TenantSpec]:
    return specs(*(TenantSpec(name, weight=weight) for name, weight in by_name.items()))


def test_weights_share_the_gpu_in_proportion() -> None:
    # 4 + 2 + 1 + 1 = 8
    owed = entitlements("abcd", weights(a=4, b=2, c=1, d=1))
    assert owed == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.125})


def test_only_tenants_with_demand_count() -> None:
    # b and c are absent: 4 + 1 = 5
    assert entitlements("ad", weights(a=4, b=2, c=1, d=1)) == pytest.approx({"a": 0.8, "d": 0.2})


def test_nobody_with_demand_is_owed_nothing() -> None:
    assert entitlements([], weights(a=1)) == {}


def test_a_tenant_nobody_configured_weighs_one() -> None:
    assert entitlements(["a", "stray"], weights(a=3)) == pytest.approx({"a": 0.75, "stray": 0.25})


def test_an_unconfigured_child_takes_its_parents_manners_but_not_its_numbers() -> None:
    team = TenantSpec("team", 5, quota_ratio=0.5, min_ratio=0.1, tenant_class=TenantClass.BATCH)
    child = spec_for("team/x", specs(team))
    assert child == TenantSpec("team/x", 1.0, tenant_class=TenantClass.BATCH)


def test_a_weight_may_count_in_part_on_a_gpu_and_as_a_whole_on_those_not_named() -> None:
    # 150 shares: 100 of A and 50 of B, beside 50 of B
    team = TenantSpec("team", 150, gpu_parts=(("A", 2 / 3), ("B", 1 / 3)))
    known = specs(team, TenantSpec("other", 50), TenantSpec("team/x", 1))
    assert entitlements(["team", "other"], known, "B") == pytest.approx({"team": 0.5, "other": 0.5})
    assert entitlements(["team/x", "other"], known, "B") == pytest.approx({"team/x": 0.5, "other": 0.5})
    assert entitlements(["team/x", "other"], known, "A") == pytest.approx({"team/x": 2 / 3, "other": 1 / 3})
    assert entitlements(["team", "other"], known, "C") == pytest.approx({"team": 0.75, "other": 0.25})
    assert entitlements(["team", "other"], known) == pytest.approx({"team": 0.75, "other": 0.25})
    assert spec_for("team/stray", specs(team)).gpu_parts == ()


def test_children_share_the_weight_of_their_parent() -> None:
    # team 3 : solo 1 -> .75 / .25; inside the team 2 : 1 -> .5 / .25
    known = specs(
        TenantSpec("team", 3), TenantSpec("team/chat", 2), TenantSpec("team/eval", 1), TenantSpec("solo", 1)
    )
    owed = entitlements(["team/chat", "team/eval", "solo"], known)
    assert owed == pytest.approx({"team/chat": 0.5, "team/eval": 0.25, "solo": 0.25})
    # A child without demand leaves its part to its sibling, not to the other team.
    assert entitlements(["team/eval", "solo"], known) == pytest.approx({"team/eval": 0.75, "solo": 0.25})


def test_work_directly_in_a_parent_competes_as_one_more_child() -> None:
    owed = entitlements(["team", "team/a", "solo"], weights(team=1, solo=1))
    assert owed == pytest.approx({"team": 0.25, "team/a": 0.25, "solo": 0.5})


def test_what_a_capped_tenant_leaves_goes_to_the_others_by_weight() -> None:
    # by weight a .6 b .3 c .1; a capped at .3 leaves .7 for 3 : 1
    known = {**weights(b=3, c=1), "a": TenantSpec("a", 6, quota_ratio=0.3)}
    assert entitlements("abc", known) == pytest.approx({"a": 0.3, "b": 0.525, "c": 0.175})


def test_if_everybody_is_capped_the_rest_is_owed_to_nobody() -> None:
    known = specs(TenantSpec("a", quota_ratio=0.2), TenantSpec("b", quota_ratio=0.3))
    assert entitlements("ab", known) == pytest.approx({"a": 0.2, "b": 0.3})


def test_a_guarantee_holds_whatever_the_weights_say() -> None:
    # by weight m gets .1/10.1 = .0099; guaranteed .3, the rest .7 is split 1 : 1
    known = {**weights(a=5, b=5), "m": TenantSpec("m", 0.1, min_ratio=0.3)}
    assert entitlements("abm", known) == pytest.approx({"a": 0.35, "b": 0.35, "m": 0.3})


def test_guarantees_that_do_not_fit_together_are_scaled_alike() -> None:
    # .9 + .6 = 1.5 > 1 -> .6 and .4, nothing left for c
    known = specs(TenantSpec("a", min_ratio=0.9), TenantSpec("b", min_ratio=0.6), TenantSpec("c"))
    assert entitlements("abc", known) == pytest.approx({"a": 0.6, "b": 0.4, "c": 0.0})


def test_a_guarantee_of_a_child_reaches_through_a_light_parent() -> None:
    known = specs(TenantSpec("team", 1), TenantSpec("team/x", 1, min_ratio=0.4), TenantSpec("solo", 9))
    assert entitlements(["team/x", "solo"], known) == pytest.approx({"team/x": 0.4, "solo": 0.6})


def test_the_quota_of_a_parent_binds_its_children_together() -> None:
    known = specs(TenantSpec("team", 8, quota_ratio=0.4), TenantSpec("solo", 1))
    owed = entitlements(["team/a", "team/b", "solo"], known)
    assert owed == pytest.approx({"team/a": 0.2, "team/b": 0.2, "solo": 0.6})


def test_a_weight_of_zero_is_tiny_not_a_crash() -> None:
    owed = entitlements("ab", weights(a=0, b=1))
    assert 0 < owed["a"] < 1e-6 and math.isclose(sum(owed.values()), 1.0)


NAMES = ["a", "b", "c", "t/x", "t/y", "t/z/p", "t/z/q", "u/x"]
ratio = st.floats(0.0, 1.0)


@st.composite
def populations(draw: st.DrawFn) -> tuple[list[str], dict[str, TenantSpec]]:
    active = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    known = {}
    for name in [*NAMES, "t", "t/z", "u"]:
        if draw(st.booleans()):
            known[name] = TenantSpec(
                name,
                weight=draw(st.floats(0.01, 100)),
                quota_ratio=draw(st.none() | st.floats(0.01, 1.0)),
                min_ratio=draw(st.just(0.0) | ratio),
            )
    return active, known


def uncapped(known: dict[str, TenantSpec]) -> dict[str, TenantSpec]:
    return {n: TenantSpec(n, weight=s.weight, min_ratio=s.min_ratio) for n, s in known.items()}


@given(populations())
def test_entitlements_sum_to_one_when_nobody_is_capped(population: tuple) -> None:
    active, known = population
    assert math.isclose(sum(entitlements(active, uncapped(known)).values()), 1.0, abs_tol=1e-9)


@given(populations())
def test_entitlements_sum_to_one_or_to_what_the_caps_allow(population: tuple) -> None:
    active, known = population
    total = sum(entitlements(active, known).values())
    assert total <= 1 + 1e-9
    if total < 1 - 1e-9:
        # Less than everything is owed only if no tenant could take more without passing a cap above it.
        for name in active:
            above = [name[:end] for end in [*[i for i, c in enumerate(name) if c == "/"], len(name)]]
            full = any(
                node in known
                and known[node].quota_ratio is not None
                and sum(
                    part
                    for leaf, part in entitlements(active, known).items()
                    if leaf == node or leaf.startswith(node + "/")
                )
                >= known[node].quota_ratio - 1e-9
                for node in above
            )
            assert full, name


@given(populations())
def test_nobody_is_owed_more_than_its_quota_or_less_than_nothing(population: tuple) -> None:
    active, known = population
    for name, part in entitlements(active, known).items():
        quota = known[name].quota_ratio if name in known else None
        assert 0 <= part <= (1.0 if quota is None else quota) + 1e-9


@given(populations())
def test_guarantees_are_kept_when_they_fit(population: tuple) -> None:
    active, known = population
    leaves = {n: TenantSpec(n, weight=s.weight, min_ratio=s.min_ratio) for n, s in known.items()}
    wanted = sum(leaves[name].min_ratio for name in active if name in leaves)
    for inner in ("t", "t/z", "u"):
        leaves.pop(inner, None)
    if wanted <= 1:
        owed = entitlements(active, leaves)
        assert all(owed[name] >= leaves[name].min_ratio - 1e-9 for name in active if name in leaves)


@given(populations(), st.randoms(use_true_random=False))
def test_the_order_of_names_does_not_matter(population: tuple, rng: random.Random) -> None:
    active, known = population
    shuffled = list(active)
    rng.shuffle(shuffled)
    assert entitlements(active, known) == entitlements(shuffled, known)


@given(populations(), st.data())
def test_a_larger_weight_never_lowers_its_owner_nor_raises_another(
    population: tuple, data: st.DataObject
) -> None:
    active, known = population
    name = data.draw(st.sampled_from(active))
    spec = known.get(name, TenantSpec(name))
    heavier = TenantSpec(name, spec.weight * 3, spec.quota_ratio, spec.min_ratio)
    before = entitlements(active, {**known, name: spec})
    after = entitlements(active, {**known, name: heavier})
    assert after[name] >= before[name] - 1e-9
    assert all(after[other] <= before[other] + 1e-9 for other in active if other != name)


@given(st.lists(st.tuples(st.floats(0.01, 10), ratio, ratio), min_size=1, max_size=8), ratio)
def test_water_filling_stays_within_the_banks_and_fills_what_it_can(claims: list, total: float) -> None:
    bounded = [(weight, min(a, b), max(a, b)) for weight, a, b in claims]
    parts = divide(total, bounded)
    assert all(part <= high + 1e-9 for part, (_, _, high) in zip(parts, bounded, strict=True))
    expected = min(total, sum(high for _, _, high in bounded))
    assert math.isclose(sum(parts), expected, abs_tol=1e-9)
