# SPDX-License-Identifier: Apache-2.0
"""From a report to rows, and what a key makes of the view."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.cli.top import command as top
from fairsched.cli.top.keys import Keys
from fairsched.cli.top.rows import SCALES, Order, choose_scale, clamp_first, make_rows
from fairsched.cli.top.view import MAX_FILTER, View, press
from fairsched.protocol.status import TenantState, TokenRate, VramStatus
from tests.unit.cli.top.pictures import GPU, crowd, extreme, node, tenant
from tests.unit.protocol import fakes

THREE = node(
    tenant("b", lag_ms=-5.0, used_ratio=0.3, tokens=TokenRate(10.0), held_ms_per_s=1.0),
    tenant("c", lag_ms=7.0, used_ratio=0.1, weight=4, queue_delay_p99_ms=3.0),
    tenant("a", state=TenantState.HELD, vram_by_gpu_bytes={GPU: 3, "other": 4}),
    tenant("d", lag_ms=-90.0, entitled_ratio=0.5, state=TenantState.HELD),
)


def names(order: Order = Order.LAG, needle: str = "", *, is_reversed: bool = False) -> str:
    return "".join(row.name for row in make_rows(THREE, order, is_reversed=is_reversed, needle=needle))


def test_the_most_overdrawn_is_first_and_who_has_no_lag_is_last() -> None:
    assert names() == "dbca"
    assert names(is_reversed=True) == "cbda", "what is not known stays last"


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (Order.USED, "b"),
        (Order.ENTITLED, "d"),
        (Order.WEIGHT, "c"),
        (Order.TOKENS, "b"),
        (Order.QUEUE, "c"),
        (Order.VRAM, "a"),
        (Order.HELD, "b"),
        (Order.NAME, "a"),
    ],
)
def test_every_order_puts_the_most_first(order: Order, first: str) -> None:
    assert names(order)[0] == first
    assert sorted(names(order)) == ["a", "b", "c", "d"]


def test_the_command_knows_every_order() -> None:
    assert tuple(order.value for order in Order) == top._ORDERS


def test_a_filter_is_part_of_a_name_or_a_state() -> None:
    assert names(needle="B") == "b"
    assert names(needle="held") == "da"
    assert names(needle="hel") == "", "a part of a state would find too much"
    assert names(needle="nobody") == ""


def test_memory_is_that_of_all_gpus_and_absent_where_nobody_knows_it() -> None:
    rows = {row.name: row for row in make_rows(THREE)}
    assert rows["a"].vram_bytes == 7
    assert rows["b"].vram_bytes is None
    limited = tenant("x", vram=(VramStatus(GPU, 8, 5), VramStatus("other", 8)))
    assert make_rows(node(limited))[0].vram_bytes == 5


def test_what_needs_a_person_is_in_the_row() -> None:
    problems = {row.name[:1]: row.problem for row in make_rows(extreme())}
    assert problems == {"\x1b": "endless", "面": "over_vram", "n": None}


def test_a_full_bar_stands_for_no_more_than_is_needed_and_does_not_hover() -> None:
    def scale(peak: float, before: float = SCALES[-1]) -> float:
        return choose_scale(make_rows(node(tenant("x", used_ratio=peak))), before)

    assert [scale(peak) for peak in (0.0, 0.1, 0.11, 0.3, 0.6, 1.0, 1.3)] == [
        0.1,
        0.1,
        0.25,
        0.5,
        0.75,
        1.0,
        1.0,
    ]
    assert scale(0.49, before=0.75) == 0.75, "just below the finer one: it stays"
    assert scale(0.39, before=0.75) == 0.5
    assert scale(0.51, before=0.5) == 0.75, "what does not fit is never cut off"


def test_no_line_stays_empty_while_rows_are_hidden() -> None:
    assert clamp_first(1 << 30, 40, 10) == 30
    assert clamp_first(5, 40, 10) == 5
    assert clamp_first(5, 3, 10) == 0


def after(*keys: str, view: View = View(), page: int = 10) -> View:  # noqa: B008
    for key in keys:
        view = press(view, key, page)
    return view


def test_s_goes_through_all_orders_and_comes_back() -> None:
    seen, view = [], View()
    for _ in Order:
        view = press(view, "s", 10)
        seen.append(view.order)
    assert sorted(seen) == sorted(Order)
    assert view.order is Order.LAG
    assert after("v", "r") == View(order=Order.VRAM, is_reversed=True)
    assert after("r", "t") == View(order=Order.TOKENS), "a new order begins with the most"


def test_while_a_filter_is_typed_letters_are_letters() -> None:
    view = after("/", "q", "p", "s")
    assert (view.needle, view.is_typing, view.is_over, view.is_paused) == ("qps", True, False, False)
    assert after("backspace", "enter", view=view) == View(needle="qp")
    assert after("kill_line", "x", "enter", view=view).needle == "x"
    assert after("escape", view=view) == View()
    assert after("/", "x", "enter", "escape") == View()
    assert len(after("/", *("x" * 99)).needle) == MAX_FILTER
    assert after("/", "up").needle == "", "an arrow is no letter"


def test_scrolling() -> None:
    assert after("down", "j", "down", "k").first == 2
    assert after("up").first == 0
    assert after("page_down", page=7).first == 7
    assert after("G").first > 1000
    assert after("G", "g").first == 0


def test_help_hides_the_table_until_any_key() -> None:
    assert after("?").is_help
    assert not after("?", "s").is_help
    assert after("?", "s").order is Order.LAG, "the key that leaves the help does nothing else"
    assert after("?", "q").is_over
    assert after("p").is_paused
    assert not after("p", " ").is_paused


KEYS = [
    (b"q", ["q"]),
    (b"\x1b[A\x1bOB", ["up", "down"]),
    (b"\x1b[5~\x1b[6~", ["page_up", "page_down"]),
    (b"\x1b[1;5A", []),  # Ctrl-Up: none of ours, and no letters out of its middle
    (b"\r\x7f\x15", ["enter", "backspace", "kill_line"]),
    ("ü面".encode(), ["ü", "面"]),
    (b"\x1bx", ["escape", "x"]),
    (b"\x00\x01", []),
]


@pytest.mark.parametrize(("data", "keys"), KEYS)
def test_keys_are_told_from_their_bytes_however_they_arrive(data: bytes, keys: list[str]) -> None:
    whole, pieces = Keys(), Keys()
    assert whole.feed(data) == keys
    found = [key for number in range(len(data)) for key in pieces.feed(data[number : number + 1])]
    assert found == keys


def test_escape_alone_is_known_only_when_nothing_follows() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.is_waiting
    assert keys.flush() == ["escape"]
    assert not keys.is_waiting


@given(st.binary(max_size=60))
def test_no_bytes_break_the_keys(data: bytes) -> None:
    keys = Keys()
    found = [*keys.feed(data), *keys.flush()]
    assert not keys.is_waiting
    assert all(key for key in found)


def test_a_crowd_is_sorted_by_its_numbers() -> None:
    assert [row.name for row in make_rows(crowd(3))] == ["t002", "t001", "t000"]
    assert make_rows(replace(fakes.status(), tenants=())) == []
