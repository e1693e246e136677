# SPDX-License-Identifier: Apache-2.0
"""Whether two patterns can claim the same cgroup is decided exactly, and shown."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairsched.cgroup.glob import Globs
from fairsched.config.patterns import claimed_prefix, component_overlap, near_pairs, normalise, overlap
from tests.support import is_matched

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure of the code."""


@pytest.mark.parametrize(
    "text", ["", "/", "a//b", "a/../b", "./a", "**", "a/b**", "a[0]", "a/{b,c}", "a\nb", "**/a/**"]
)
def test_a_bad_pattern_says_why(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        normalise(text)


def test_slashes_around_a_pattern_do_not_matter() -> None:
    assert normalise("/gpu.slice/chat/") == "gpu.slice/chat"


@pytest.mark.parametrize(
    ("pattern", "path", "held"),
    [
        ("gpu.slice/chat", "gpu.slice/chat", "gpu.slice/chat"),
        ("gpu.slice/chat", "gpu.slice/chat/worker/0", "gpu.slice/chat"),
        ("gpu.slice/chat", "gpu.slice/chat2", None),
        ("gpu.slice/*", "gpu.slice", None),
        ("gpu.slice/*", "gpu.slice/a/b", "gpu.slice/a"),
        ("**/pod-*", "k/a/pod-1/c", "k/a/pod-1"),
        ("k/**/pod-?", "k/pod-1", "k/pod-1"),
        ("k/**", "k", None),
        ("k/**", "k/a/b", "k/a"),
        (r"machine-qemu\x2d1.scope", r"machine-qemu\x2d1.scope", r"machine-qemu\x2d1.scope"),
    ],
)
def test_the_shallowest_match_is_what_is_held(pattern: str, path: str, held: str | None) -> None:
    assert claimed_prefix(pattern, path) == held


@pytest.mark.parametrize(
    ("one", "two", "example"),
    [
        ("a/b", "a/b", "a/b"),
        ("a", "a/b/c", "a/b/c"),
        ("a/b", "a/c", None),
        ("a/x*", "a/*y", "a/xy"),
        ("a/x*", "a/y*", None),
        ("a/*/c", "a/b", "a/b/c"),
        ("**/pod-*", "k/pod-7", "k/pod-7"),
        ("**/pod-*", "x", "x/pod-"),
        ("a/**/c", "b/**/c", None),
        ("a/?", "a/bc", None),
        ("k/**", "k", "k/x"),
    ],
)
def test_overlap_comes_with_an_example(one: str, two: str, example: str | None) -> None:
    assert overlap(one, two) == example
    assert (overlap(two, one) is None) == (example is None)


COMPONENT = st.text("ab*?", min_size=1, max_size=4).filter(lambda text: "**" not in text)
PATTERN = (
    st.lists(COMPONENT | st.just("**"), min_size=1, max_size=4)
    .map("/".join)
    .filter(lambda text: text.split("/").count("**") <= 1 and text != "**")
)
PATH = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=5).map("/".join)


@given(PATTERN, PATTERN, PATH)
@LOADED
def test_a_path_claimed_by_both_means_overlap(one: str, two: str, path: str) -> None:
    if claimed_prefix(one, path) is not None and claimed_prefix(two, path) is not None:
        assert overlap(one, two) is not None


@given(PATTERN, PATTERN)
@LOADED
def test_the_example_of_an_overlap_is_claimed_by_both(one: str, two: str) -> None:
    example = overlap(one, two)
    if example is not None:
        assert claimed_prefix(one, example) is not None
        assert claimed_prefix(two, example) is not None


@given(st.lists(PATTERN, max_size=6))
@LOADED
def test_all_that_overlap_are_among_the_pairs_to_compare(found: list[str]) -> None:
    near = list(near_pairs(found))
    assert len(set(near)) == len(near)
    for later in range(len(found)):
        for earlier in range(later):
            assert (later, earlier) in near or overlap(found[later], found[earlier]) is None


def test_a_thousand_plain_paths_are_not_compared_with_each_other() -> None:
    found = [f"gpu.slice/team{n % 7}.slice/job{n}.scope" for n in range(1000)]
    assert list(near_pairs(found)) == []
    assert len(list(near_pairs([*found, "gpu.slice/team3.slice", "other/**"]))) == len(found[3::7])


@given(COMPONENT, COMPONENT)
@LOADED
def test_an_example_name_is_matched_by_both_components(one: str, two: str) -> None:
    example = component_overlap(one, two)
    if example is not None:
        assert is_matched(Globs([one]), example)
        assert is_matched(Globs([two]), example)


@given(PATTERN, PATH)
@LOADED
def test_the_hands_match_what_the_brain_claims(pattern: str, path: str) -> None:
    parts = path.split("/")
    prefixes = ["/".join(parts[: length + 1]) for length in range(len(parts))]
    shallowest = next((prefix for prefix in prefixes if is_matched(Globs([pattern]), prefix)), None)
    assert claimed_prefix(pattern, path) == shallowest
