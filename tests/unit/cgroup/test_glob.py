# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from fairsched.cgroup.glob import Globs
from tests.support import is_matched


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("gpu.slice/*", "/gpu.slice/a", True),
        ("/gpu.slice/*", "/gpu.slice/a", True),
        ("gpu.slice/*", "/gpu.slice", False),
        ("gpu.slice/*", "/gpu.slice/a/b", False),
        ("gpu.slice/*", "/gpuXslice/a", False),
        ("kubepods.slice/**", "/kubepods.slice/x/y/z", True),
        ("kubepods.slice/**", "/kubepods.slice", False),
        ("**/pod*", "/pod1", True),
        ("**/pod*", "/kubepods/burstable/pod1", True),
        ("**/pod*", "/kubepods/burstable/pod1/ctr", False),
        ("a/**/z", "/a/z", True),
        ("a/**/z", "/a/b/c/z", True),
        ("a/**/z", "/a/b/c", False),
        ("a/**/**", "/a/b", True),
        ("u-[0-9]", "/u-7", True),
        ("u-[0-9]", "/u-x", False),
    ],
)
def test_pattern(pattern: str, path: str, expected: bool) -> None:
    assert is_matched(Globs([pattern]), path) is expected


def test_any_of_several_patterns_matches() -> None:
    globs = Globs(["a/*", "b"])
    assert is_matched(globs, "/a/x")
    assert is_matched(globs, "/b")
    assert not is_matched(globs, "/c")


def test_state_is_empty_where_nothing_below_can_match() -> None:
    globs = Globs(["gpu.slice/*"])
    assert not globs.step(globs.start, "system.slice")
    assert globs.step(globs.start, "gpu.slice")


@pytest.mark.parametrize("pattern", ["", "/", "a/../b"])
def test_pattern_that_can_match_nothing_is_an_error(pattern: str) -> None:
    with pytest.raises(ValueError, match="not a pattern"):
        Globs([pattern])
