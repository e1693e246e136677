# SPDX-License-Identifier: Apache-2.0
"""A cluster without the definition has no policies; an API server that does not know yet changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from fairsched.k8s.client import Refused
from fairsched.k8s.policies import watch
from fairsched.k8s.policies.model import GROUP, PATH, PLURAL, VERSION
from fairsched.k8s.policies.watch import PolicyWatch
from tests.unit.k8s import test_watch
from tests.unit.k8s.policies.made import policy

OTHERS = {"groups": [{"name": "apps"}]}
OURS = {"groups": [{"name": "apps"}, {"name": GROUP}]}
RESOURCES = f"/apis/{GROUP}/{VERSION}"


class Server(test_watch.Server):
    """``knows``: what it answers to discovery; what is not there is not found."""

    def __init__(self) -> None:
        super().__init__()
        self.knows: dict[str, Any] = {"/apis": OTHERS}
        self.is_defined = False

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        if path not in self.knows:
            raise Refused(f"GET {path}", 404, {}, None)
        found: Mapping[str, Any] = self.knows[path]
        return found

    def listed(self, path: str, query: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], str]:
        if not self.is_defined:
            raise Refused(f"GET {path}", 404, {}, None)
        return super().listed(path, query)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(watch, "ABSENT_S", 0.0)
    return Server()


def test_a_cluster_that_does_not_know_policies_has_none_and_that_is_no_trouble(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told: list[int] = []
    found = PolicyWatch(server, changed=lambda: told.append(1))
    for _ in range(5):
        found.step()
    assert found.items() == [] and found.trouble() is None and told == [1]
    assert [one.message for one in caplog.records] == [f"policies=undefined path={PATH}"]


def test_when_it_is_defined_later_they_are_seen(server: Server) -> None:
    found = PolicyWatch(server)
    found.step()
    server.is_defined, server.lists, server.watches = True, [([policy("a")], "7")], [[]]
    found.step()
    assert [one["metadata"]["name"] for one in found.items() or ()] == ["a"]
    assert server.asked == ["7"]


def test_a_definition_that_goes_takes_its_policies_with_it(server: Server) -> None:
    found = PolicyWatch(server)
    server.is_defined, server.lists, server.watches = (
        True,
        [([policy("a")], "7")],
        [Refused("w", 404, {}, None)],
    )
    found.step()
    assert found.items() == []
    server.lists, server.watches = [([policy("b")], "1")], [[]]
    found.step()
    assert [one["metadata"]["name"] for one in found.items() or ()] == ["b"], "another one is listed anew"


@pytest.mark.parametrize(
    "knows",
    [
        {},
        {"/apis": {}},
        {"/apis": {"groups": []}},
        {"/apis": OURS, RESOURCES: {"resources": [{"name": PLURAL}]}},
    ],
    ids=["not-asked", "nothing", "no-groups", "defined"],
)
def test_a_server_that_has_just_started_takes_nobodys_policy(server: Server, knows: dict[str, Any]) -> None:
    """It does not find what it knows, or knows nothing at all: what it said before holds."""
    found = PolicyWatch(server)
    server.is_defined, server.lists, server.watches = True, [([policy("a")], "7")], [[]]
    found.step()
    server.is_defined, server.knows, server.watches = False, knows, [Refused("w", 404, {}, None)]
    with pytest.raises(Refused):
        found.step()
    assert [one["metadata"]["name"] for one in found.items() or ()] == ["a"]


@pytest.mark.parametrize(
    "knows", [{"/apis": OURS}, {"/apis": OURS, RESOURCES: {"resources": [{"name": "teams"}]}}]
)
def test_other_things_of_our_group_are_no_policies(server: Server, knows: dict[str, Any]) -> None:
    server.knows = knows
    found = PolicyWatch(server)
    found.step()
    assert found.items() == []
