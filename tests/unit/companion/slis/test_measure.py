# SPDX-License-Identifier: Apache-2.0
"""From samples and tokens to the verdict: who is compared with whom, and when nothing can be said."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.companion.slis.curve import Curve
from fairsched.companion.slis.formulas import variation
from fairsched.companion.slis.measure import Tokens, measure
from fairsched.companion.slis.window import Window
from fairsched.protocol.status import SliStatus
from tests.unit.companion.slis.made import GPU, OTHER, S, tokens, window

EQUAL = {"chat": {GPU: 0.5}, "batch": {GPU: 0.5}}


def slis(wanted: Mapping[str, Mapping[str, float]], of: Mapping[str, Tokens], seconds: int = 60) -> SliStatus:
    return measure(window(seconds, lambda _: wanted), of)[0]


def test_equal_rates_of_equal_tenants_are_fair() -> None:
    found = slis(EQUAL, {"chat": tokens(60, 100), "batch": tokens(60, 98)})
    assert found.token_rate_cv_ratio == pytest.approx(variation([100, 98]))
    assert (found.is_fair, found.token_rate_reason, found.window_s) == (True, None, 60)


def test_a_greedy_neighbour_is_unfair() -> None:
    found = slis(EQUAL, {"chat": tokens(60, 25), "batch": tokens(60, 75)})
    assert found.token_rate_cv_ratio == pytest.approx(variation([25, 75]))
    assert found.is_fair is False


def test_weights_are_no_unfairness() -> None:
    wanted = {"chat": {GPU: 0.8}, "batch": {GPU: 0.2}}
    assert slis(wanted, {"chat": tokens(60, 80), "batch": tokens(60, 20)}).is_fair is True
    assert slis(wanted, {"chat": tokens(60, 50), "batch": tokens(60, 50)}).is_fair is False


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=6),
    errors=st.lists(st.floats(0.5, 1.5), min_size=6, max_size=6),
)
def test_properties_only_the_distance_from_what_is_due_matters(
    weights: list[float], errors: list[float]
) -> None:
    """The CV is that of received by due: the weights cancel out, as do the token's unit and the number of GPUs."""
    due = [weight / sum(weights) for weight in weights]
    wanted = {str(n): {GPU: part} for n, part in enumerate(due)}
    of = {str(n): tokens(20, 100 * part * errors[n]) for n, part in enumerate(due)}
    found = slis(wanted, of, 20).token_rate_cv_ratio
    assert found == pytest.approx(variation(errors[: len(due)]) or 0.0, rel=1e-6, abs=1e-9)


def test_who_pauses_is_not_compared() -> None:
    made = window(60, lambda second: EQUAL if second % 4 else {"chat": {GPU: 1.0}})
    found, _ = measure(made, {"chat": tokens(60, 80), "batch": tokens(60, 20)})
    assert found.token_rate_cv_ratio is None
    assert "wanted the same GPU" in (found.token_rate_reason or "")


def test_tenants_on_gpus_of_their_own_are_not_compared() -> None:
    found = slis(
        {"chat": {GPU: 1.0}, "batch": {OTHER: 1.0}}, {"chat": tokens(60, 80), "batch": tokens(60, 20)}
    )
    assert found.is_fair is None


def test_models_that_are_not_alike_are_compared_by_what_a_token_costs_and_not_without() -> None:
    large, small = {"kind": ("m", "70b")}, {"kind": ("m", "8b")}
    found = slis(EQUAL, {"chat": tokens(60, 20, **large), "batch": tokens(60, 200, **small)})
    assert found.is_fair is None
    assert found.token_rate_reason == (
        "tokens of different models are not alike (batch, chat): give each a token_cost_ms"
    )
    costs = {"chat": tokens(60, 20, cost_ms=25.0, **large), "batch": tokens(60, 200, cost_ms=2.5, **small)}
    assert slis(EQUAL, costs).is_fair is True
    costs["batch"] = tokens(60, 400, cost_ms=2.5, **small)
    assert slis(EQUAL, costs).is_fair is False


def test_a_page_that_names_no_model_is_compared_with_nobody() -> None:
    unknown = {"chat": tokens(60, 50, kind=None), "batch": tokens(60, 50, kind=None)}
    assert slis(EQUAL, unknown).is_fair is None


def test_the_worst_group_counts() -> None:
    wanted = {"a": {GPU: 0.5}, "b": {GPU: 0.5}, "c": {OTHER: 0.5}, "d": {OTHER: 0.5}}
    of = {"a": tokens(60, 50), "b": tokens(60, 50), "c": tokens(60, 30), "d": tokens(60, 70)}
    assert slis(wanted, of).token_rate_cv_ratio == pytest.approx(variation([30, 70]))


def test_a_tenant_on_two_gpus_is_due_the_sum() -> None:
    wanted = {"wide": {GPU: 0.5, OTHER: 0.5}, "a": {GPU: 0.5}, "b": {OTHER: 0.5}}
    assert slis(wanted, {"wide": tokens(60, 100), "a": tokens(60, 50), "b": tokens(60, 50)}).is_fair is True


def test_without_counters_nothing_is_made_up() -> None:
    found, rates = measure(window(60, lambda _: EQUAL), {})
    assert (found.token_rate_cv_ratio, found.is_fair, rates) == (None, None, {})
    assert found.token_rate_reason == "no tenant has a tokens_url"


def test_who_makes_no_token_while_another_does_is_starved() -> None:
    assert slis(EQUAL, {"chat": tokens(60, 0), "batch": tokens(60, 50)}).is_fair is False
    found = slis(EQUAL, {"chat": tokens(60, 0), "batch": tokens(60, 0)})
    assert (found.is_fair, found.token_rate_reason) == (
        None,
        "tenants that wanted the same GPU made no token",
    )


def test_a_page_that_went_silent_is_not_known_rather_than_0() -> None:
    made = window(60, lambda _: EQUAL)
    stale = tokens(40, 50, note="no tokens from http://a: no answer", failures=4)
    found, rates = measure(made, {"chat": stale, "batch": tokens(60, 50)})
    assert found.is_fair is None
    assert (rates["chat"].tokens_per_s, rates["chat"].cv_ratio) == (None, None)
    assert (rates["chat"].note, rates["chat"].failures) == ("no tokens from http://a: no answer", 4)
    assert rates["batch"].tokens_per_s == pytest.approx(50)


def test_a_tenant_of_several_pages_is_known_when_all_of_them_are() -> None:
    both = Tokens([*tokens(60, 10).curves, *tokens(60, 30).curves], kind="model")
    _, rates = measure(window(60, lambda _: EQUAL), {"chat": both})
    assert rates["chat"].tokens_per_s == pytest.approx(40)
    one_is_dead = Tokens([*tokens(60, 10).curves, Curve(S)], kind="model")
    _, rates = measure(window(60, lambda _: EQUAL), {"chat": one_is_dead})
    assert rates["chat"].tokens_per_s is None


def test_a_few_seconds_after_the_start_nothing_is_said() -> None:
    for seconds in (0, 1, 5, 9):
        found = slis(EQUAL, {"chat": tokens(seconds, 10), "batch": tokens(seconds, 90)}, seconds)
        assert found.is_fair is None
    assert slis(EQUAL, {"chat": tokens(11, 10), "batch": tokens(11, 90)}, 11).is_fair is False


def test_before_the_first_status_nothing_is_known() -> None:
    found, rates = measure(Window(60 * S), {"chat": tokens(60, 10, note="n", failures=2)})
    assert found == SliStatus()
    assert (rates["chat"].tokens_per_s, rates["chat"].note, rates["chat"].failures) == (None, "n", 2)


def test_a_tenants_own_rate_in_time() -> None:
    made = window(60, lambda _: EQUAL)
    _, rates = measure(
        made,
        {
            "even": tokens(60, 100),
            "chat": tokens(60, lambda second: 50 if second % 2 else 150),
            "batch": tokens(60, lambda second: 50 if second % 2 else 150, is_steady=False),
        },
    )
    assert rates["chat"].cv_ratio == pytest.approx(0.5, rel=0.05)
    assert rates["batch"].cv_ratio is None, "requests that end are lumps, not the rate"
    assert rates["batch"].tokens_per_s == pytest.approx(100)
    assert rates["even"].cv_ratio is None, "it is no tenant that wanted anything"


def test_seconds_without_demand_are_not_of_the_rate_in_time() -> None:
    made = window(60, lambda second: EQUAL if second % 20 < 15 else {})
    _, rates = measure(made, {"chat": tokens(60, lambda second: 100 if second % 20 < 15 else 0)})
    assert rates["chat"].cv_ratio == pytest.approx(0, abs=0.01)


def test_a_second_that_one_of_two_pages_does_not_resolve_is_not_made_of_the_other() -> None:
    often, seldom = Curve(1000 * S), Curve(1000 * S)
    for second in range(0, 61):
        often.add(second * S, {"a": 10.0 * second})
        if second % 10 == 0:
            seldom.add(second * S, {"a": 10.0 * second})
    both = Tokens([often, seldom])
    assert both.grown(10 * S, 40 * S) == pytest.approx(600)
    assert both.grown(11 * S, 12 * S, 2 * S) is None
    assert Tokens([often]).grown(11 * S, 12 * S, 2 * S) == pytest.approx(10)
