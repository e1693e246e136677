# SPDX-License-Identifier: Apache-2.0
"""What of the rows is looked at, and what a key makes of that. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairsched.cli.top.rows import SCALES, Order

_ORDERS = tuple(Order)
MAX_FILTER = 60
_LETTERS = {
    "l": Order.LAG,
    "u": Order.USED,
    "w": Order.WEIGHT,
    "t": Order.TOKENS,
    "d": Order.QUEUE,
    "v": Order.VRAM,
    "n": Order.NAME,
}
"""Keys that sort at once; s goes through all orders."""


@dataclass(frozen=True)
class View:
    """The state of the screen that is not in the report."""

    order: Order = Order.LAG
    is_reversed: bool = False
    needle: str = ""
    """The filter."""
    is_typing: bool = False
    """Keys go to the filter."""
    is_paused: bool = False
    is_help: bool = False
    first: int = 0
    """The first row shown."""
    scale: float = SCALES[-1]
    """What a full bar stands for."""
    is_over: bool = False
    """The person wants to leave."""


def press(view: View, key: str, page: int) -> View:
    """The view after one key; `page` is how many rows the table shows."""
    if view.is_typing:
        return _type(view, key)
    if key in ("q", "Q"):
        return replace(view, is_over=True)
    if view.is_help or key in ("?", "h"):
        return replace(view, is_help=not view.is_help)
    if key in ("p", " "):
        return replace(view, is_paused=not view.is_paused)
    if key == "/":
        return replace(view, is_typing=True, needle="", first=0)
    if key == "escape":
        return replace(view, needle="", first=0)
    if key == "s":
        return replace(view, order=_ORDERS[(_ORDERS.index(view.order) + 1) % len(_ORDERS)], is_reversed=False)
    if key == "r":
        return replace(view, is_reversed=not view.is_reversed)
    if key in _LETTERS:
        return replace(view, order=_LETTERS[key], is_reversed=False)
    return _scroll(view, key, page)


def _type(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, is_typing=False)
    if key == "escape":
        return replace(view, is_typing=False, needle="")
    if key == "backspace":
        return replace(view, needle=view.needle[:-1], first=0)
    if key == "kill_line":
        return replace(view, needle="", first=0)
    if len(key) == 1 and len(view.needle) < MAX_FILTER:
        return replace(view, needle=view.needle + key, first=0)
    return view


def _scroll(view: View, key: str, page: int) -> View:
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page_up": -page, "page_down": page}
    if key in steps:
        return replace(view, first=max(0, view.first + steps[key]))
    if key in ("home", "g"):
        return replace(view, first=0)
    if key in ("end", "G"):
        return replace(view, first=1 << 30)  # drawing brings it back to the last page
    return view
