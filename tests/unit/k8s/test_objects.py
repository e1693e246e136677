# SPDX-License-Identifier: Apache-2.0
"""What is asked of an object, whatever stands in it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from fairsched.k8s.objects import added_up, annotations_of, is_over, key_of, labels_of, text_of


@pytest.mark.parametrize("metadata", [None, {}, "a text", {"name": None, "labels": None, "annotations": []}])
def test_an_object_that_says_nothing_of_itself_is_asked_in_vain(metadata: Any) -> None:
    one = {"metadata": metadata, "status": None}
    assert (key_of(one), labels_of(one), annotations_of(one)) == (("", ""), {}, {})
    assert (text_of(one, "uid"), is_over(one)) == ("", False)


def test_what_an_object_says_of_itself() -> None:
    said = {"namespace": "ml", "name": "x", "uid": 7, "labels": {"a": "b"}, "annotations": {"c": "d"}}
    one = {"metadata": said, "status": {"phase": "Failed"}}
    assert (key_of(one), labels_of(one), annotations_of(one)) == (("ml", "x"), {"a": "b"}, {"c": "d"})
    assert (text_of(one, "uid"), is_over(one)) == ("7", True)


@pytest.mark.parametrize(
    ("init", "together"),
    [
        ((), 3),
        (("4",), 4),
        (("2",), 3),
        (("4", "1 beside"), 4),  # the sidecar starts when the one of 4 is over
        (("1 beside", "4"), 5),
        (("1 beside", "2 beside", "2", "3 beside"), 9),
    ],
)
def test_a_pod_asks_for_what_the_scheduler_adds_up(init: tuple[str, ...], together: int) -> None:
    """As PodRequests of Kubernetes' resource helpers does, for containers of 1 and 2."""
    before = [{"n": one[0], "restartPolicy": "Always" if "beside" in one else None} for one in init]
    pod = {"spec": {"containers": [{"n": 1}, {"n": 2}], "initContainers": before}}
    assert added_up(pod, lambda one: Fraction(one["n"])) == together
