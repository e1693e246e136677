# SPDX-License-Identifier: Apache-2.0
"""What several rooms ask of an object of the API server (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Object = Mapping[str, Any]
PodKey = tuple[str, str]
"""(namespace, name)"""


def text_of(of: Object, key: str) -> str:
    """What its metadata says; empty: nothing."""
    return str(_mapping(of, "metadata").get(key) or "")


def name_of(of: Object) -> str:
    return text_of(of, "name")


def space_of(of: Object) -> str:
    """Its namespace; empty: it is in none."""
    return text_of(of, "namespace")


def key_of(pod: Object) -> PodKey:
    return space_of(pod), name_of(pod)


def labels_of(of: Object) -> Mapping[str, str]:
    return _mapping(_mapping(of, "metadata"), "labels")


def annotations_of(of: Object) -> Mapping[str, str]:
    return _mapping(_mapping(of, "metadata"), "annotations")


def is_agent(pod: Object) -> bool:
    """One of fairsched's, that sees all processes of its node. Any pod may have its label; to see them takes rights
    with which one could be anything else as well."""
    is_called_so = labels_of(pod).get("app.kubernetes.io/name") == "fairsched"
    return is_called_so and (pod.get("spec") or {}).get("hostPID") is True


LIVING = "status.phase!=Succeeded,status.phase!=Failed"
"""A field selector: pods that are not over."""


def is_over(pod: Object) -> bool:
    """It has ended, and holds nothing any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def added_up(pod: Object, asks: Callable[[Object], Fraction]) -> Fraction:
    """What a pod asks for, as the scheduler adds up what each container ``asks``: the containers together with the
    sidecars, or an init container with the sidecars before it, where that is more."""
    spec = pod.get("spec") or {}
    sidecars = most = Fraction(0)
    for one in spec.get("initContainers") or ():
        if one.get("restartPolicy") == "Always":
            sidecars += asks(one)
        else:
            most = max(most, sidecars + asks(one))
    return max(most, sidecars + sum(asks(one) for one in spec.get("containers") or ()))


def _mapping(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = of.get(key)
    return found if isinstance(found, Mapping) else {}
