# SPDX-License-Identifier: Apache-2.0
"""The definition says what the node agents read; a real API server applies it in tests/k8s/test_policies.py."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.config import schema
from fairsched.config.models import Child
from fairsched.k8s.policies import crd
from fairsched.k8s.policies.model import KEYS, PATH

VERSION = crd.definition()["spec"]["versions"][0]
SPEC = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def walk(node: Any) -> Any:
    if isinstance(node, dict):
        yield node
        for one in node.values():
            yield from walk(one)
    elif isinstance(node, list):
        for one in node:
            yield from walk(one)


def test_its_keys_are_those_that_are_read() -> None:
    rule = SPEC["pods"]["items"]["properties"]
    assert set(SPEC["share"]["properties"]) == set(KEYS)
    assert set(rule) == {"selector", "max", *KEYS} and set(rule["max"]["properties"]) == set(KEYS)
    group, version, plural = PATH.removeprefix("/apis/").split("/")
    assert (group, version, plural) == (
        crd.GROUP,
        VERSION["name"],
        crd.definition()["spec"]["names"]["plural"],
    )


@pytest.mark.parametrize("weight", [crd.MOST_WEIGHT, 0.5])
def test_what_it_takes_the_configuration_takes(weight: float) -> None:
    said = {"weight": weight, "class": "batch", "quota": "12.5%", "min": "0%", "vram_limit": "1.5GiB"}
    Child.model_validate(said)
    for size in ("8MB", "8TiB", "999999GB"):
        Child.model_validate({"vram_limit": size})


def test_its_greatest_weight_is_the_configurations() -> None:
    found = schema()["$defs"]["Child"]["properties"]["weight"]["anyOf"][0]
    assert found["maximum"] == crd.MOST_WEIGHT and found["exclusiveMinimum"] == 0


def test_each_rule_says_what_to_do() -> None:
    """A text, not the rule itself; without line breaks, which the API server refuses."""
    rules = [one for node in walk(crd.definition()) for one in node.get("x-kubernetes-validations", ())]
    assert len(rules) > 15
    for one in rules:
        assert one["message"] and "self" not in one["message"] and "\n" not in one["rule"]


def test_every_list_and_text_of_the_spec_has_an_end() -> None:
    """Else the API server takes a rule to cost too much, and refuses all of it."""
    for node in walk(SPEC):
        if node.get("type") == "array" and "items" in node:
            assert "maxItems" in node
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node
