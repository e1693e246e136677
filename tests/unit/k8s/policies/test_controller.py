# SPDX-License-Identifier: Apache-2.0
"""One process writes the status of policies, as long as it holds the Lease, and only what is another."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairsched.k8s.client import PAGE, Refused, Unreachable
from fairsched.k8s.kubeconfig import access
from fairsched.k8s.lease import Election
from fairsched.k8s.metadata import MetadataClient
from fairsched.k8s.policies.controller import Controller, slim
from tests.support import wait_until
from tests.unit.companion.escalate.api_server import ApiServer
from tests.unit.k8s import test_lease, test_watch
from tests.unit.k8s.policies.made import pod, policy, space


class Api(test_watch.Server, test_lease.Server):
    """Lists what a test has laid ready, keeps a Lease, and takes patches."""

    def __init__(self) -> None:
        test_watch.Server.__init__(self)
        test_lease.Server.__init__(self)
        self.patched: list[tuple[str, Mapping[str, Any]]] = []
        self.refuses: Exception | None = None

    def listed(self, path: str, query: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], str]:
        if not self.lists:
            raise Unreachable("cut")
        return super().listed(path, query)

    def patch(self, path: str, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.refuses is not None:
            raise self.refuses
        self.patched.append((path, patch))
        return {}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def clock() -> test_lease.Clock:
    return test_lease.Clock()


@pytest.fixture
def controller(api: Api, clock: test_lease.Clock) -> Controller:
    election = Election(api, "fairsched", "policies", "me", clock=clock)
    election.step()
    return Controller(api, api, election, wall=lambda: 0.0)


def see(controller: Controller, api: Api, policies: Any, namespaces: Any, pods: Any) -> None:
    for one, items in zip(controller._watches, (policies, namespaces, pods), strict=True):
        one._version = ""
        api.lists, api.watches = [(items, "1")], [[]]
        one.step()


def test_nothing_is_written_before_all_is_known(controller: Controller, api: Api) -> None:
    """A policy that reaches nobody, for a moment, would be an alarm."""
    api.lists, api.watches = [([policy("p")], "1")], [[]]
    controller._policies.step()
    assert controller.step() and api.patched == []


def test_what_is_another_is_written_once_with_the_version_that_was_read(
    controller: Controller, api: Api
) -> None:
    one, other = policy("p", names=["ml"]), policy("q")
    see(controller, api, [one, other], [space()], [pod("a")])
    assert controller.step()
    assert [path.rpartition("gpusharepolicies/")[2] for path, _ in api.patched] == ["p/status", "q/status"]
    patch = api.patched[0][1]
    assert patch["metadata"] == {"resourceVersion": "1"} and patch["status"]["pods"] == 1
    written = [copy.deepcopy(document) for document in (one, other)]
    for document, (_, made) in zip(written, api.patched, strict=True):
        document["status"] = made["status"]
    see(controller, api, written, [space()], [pod("a")])
    assert controller.step() and len(api.patched) == 2
    see(controller, api, written, [space()], [pod("a"), pod("b")])
    assert controller.step()
    assert [path.rpartition("policies/")[2] for path, _ in api.patched[2:]] == ["p/status"]


def test_who_does_not_hold_the_lease_any_more_writes_nothing(
    controller: Controller, api: Api, clock: test_lease.Clock
) -> None:
    see(controller, api, [policy("p")], [space()], [])
    clock.now_s += test_lease.TIMES.deadline_s
    assert controller.step() and api.patched == []


@pytest.mark.parametrize(
    ("error", "is_done"),
    [
        (Refused("PATCH", 409, {}, None), True),
        (Refused("PATCH", 404, {}, None), True),
        (Refused("PATCH", 403, {}, None), False),
        (Unreachable("cut"), False),
    ],
)
def test_what_was_not_written_is_tried_again_unless_it_has_changed(
    controller: Controller,
    api: Api,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    is_done: bool,
) -> None:
    see(controller, api, [policy("p")], [space()], [])
    api.refuses = error
    assert [controller.step() for _ in range(3)] == [is_done] * 3
    assert len(caplog.records) == (0 if is_done else 1), "said once"
    api.refuses = None
    assert controller.step() and len(api.patched) == 1


def test_a_bug_in_a_round_does_not_end_it(
    controller: Controller, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    see(controller, api, [policy("p")], [space()], [])
    api.refuses = KeyError("surprise")
    assert not controller.round()
    assert "policy_status=failed" in caplog.text


def test_what_is_remembered_of_a_pod_is_what_policies_ask_for(controller: Controller, api: Api) -> None:
    told: list[int] = []
    controller._pods._changed = lambda: told.append(1)
    one = {**pod("a", labels={"tier": "gold"}), "status": {"phase": "Pending"}}
    assert slim(one) == {
        "metadata": {"namespace": "ml", "name": "a", "uid": "u-a", "labels": {"tier": "gold"}}
    }
    later = {**one, "status": {"phase": "Running"}}
    api.lists = [([one], "1")]
    api.watches = [[{"type": "MODIFIED", "object": later}]]
    controller._pods.step()
    assert told == [1], "what else changes of it is no change"


def test_it_ends_when_it_is_told_to_and_gives_the_lease_back(api: Api) -> None:
    election = Election(api, "fairsched", "policies", "me")
    controller = Controller(api, api, election)
    thread = threading.Thread(target=controller.run)
    thread.start()
    wait_until(lambda: api.writes == ["me"], 5.0, "it holds the Lease")
    controller.close()
    thread.join(10.0)
    assert not thread.is_alive() and api.writes[-1] == ""


def test_the_metadata_client_asks_for_metadata(tmp_path: Path) -> None:
    """And of as many pods as a cluster may have."""
    with ApiServer(tmp_path) as server:
        client = MetadataClient(access(server.kubeconfig()))
        assert client._headers(None)["Accept"].count("as=PartialObjectMetadata") == 2
        assert client.most_pages * PAGE >= 150_000
