# SPDX-License-Identifier: Apache-2.0
"""Calls of a replay in any order, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from fairsched.accounting.replay import Replay

MS = 1_000_000
KEYS = "abcd"
ACTS = ("open", "open", "close", "anchor", "progress", "drain", "resume", "look", "gone")
BEFORE = "before"
"""The close of a burst that ended a while ago: the one call that moves time without an anchor."""
DOUBT, SURE = "doubt", "sure"
"""Whether it runs is not known, or is known again."""


def steps(*more: str, most: int) -> st.SearchStrategy[list[tuple[int, str, str]]]:
    """Lists of (ns since the one before, what, key)."""
    one = st.tuples(st.integers(0, 9 * MS), st.sampled_from([*ACTS, *more]), st.sampled_from(KEYS))
    return st.lists(one, max_size=most)


def act(replay: Replay, what: str, key: str, now: int) -> None:
    """One of them."""
    replay.add(key, (KEYS.index(key),))
    if what == "open":
        replay.open(key, now)
    elif what in ("close", "anchor"):
        replay.close(key, now, is_anchor=what == "anchor")
    elif what == "progress":
        replay.progress(key, now, is_anchor=True)
    elif what == "drain":
        replay.drain(key, now, 3 * MS)
    elif what == "resume":
        replay.resume(key, now)
    elif what == BEFORE:
        replay.close_before(key, now, MS // 2)
    elif what in (DOUBT, SURE):
        replay.doubt(key, is_open=what == DOUBT)
    elif what == "look":
        replay.advance(now)
    else:
        replay.remove(key, now)
