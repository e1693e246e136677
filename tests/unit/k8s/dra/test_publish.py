# SPDX-License-Identifier: Apache-2.0
"""Slices are kept what they have to be, whoever changes them, and whatever the server makes of them."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fairsched.k8s.client import Refused, Unreachable
from fairsched.k8s.dra.devices import Offer
from fairsched.k8s.dra.publish import FIRST_WAIT_S, Loop, Publisher
from tests.unit.k8s.dra.made import A, B, gpu, offers


class Server:
    """Keeps slices; with its feature gate off it drops what it does not know, as 1.34 does."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.has_gate, self.is_away = True, False
        self.writes: list[str] = []
        self.versions = itertools.count(1)

    def listed(self, path: str, query: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], str]:
        assert query["fieldSelector"] == "spec.nodeName=node1,spec.driver=gpu.fairsched.io"
        return [copy.deepcopy(one) for one in self.slices.values()], str(next(self.versions))

    def events(self, path: str, query: Mapping[str, str], take: Callable[..., None], last_s: float) -> None:
        """No watch goes on here: each look lists."""
        raise Refused("WATCH", 410, {}, None)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        raise AssertionError("nothing is asked for twice")

    def node(self, name: str) -> Mapping[str, Any]:
        if self.is_away:
            raise Unreachable("it hangs")
        return {"metadata": {"name": name, "uid": "u1"}}

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        made = self._kept(body)
        if "dryRun=All" not in path:
            name = made["metadata"]["name"]
            if name in self.slices:
                raise Refused("POST", 409, {"reason": "AlreadyExists"}, None)
            self.writes.append(f"create {name}")
            self.slices[name] = made
        return made

    def replace(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        name = body["metadata"]["name"]
        if self.slices[name]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Refused("PUT", 409, {"reason": "Conflict"}, None)
        self.writes.append(f"replace {name}")
        self.slices[name] = self._kept(body)
        return self.slices[name]

    def delete(self, path: str, uid: str | None = None) -> None:
        name = path.rpartition("/")[2]
        if name not in self.slices:
            raise Refused("DELETE", 404, {}, None)
        self.writes.append(f"delete {name}")
        del self.slices[name]

    def _kept(self, body: Mapping[str, Any]) -> dict[str, Any]:
        made = copy.deepcopy(dict(body))
        made["metadata"] |= {"uid": f"u{next(self.versions)}", "resourceVersion": str(next(self.versions))}
        if not self.has_gate:
            for device in made["spec"]["devices"]:
                device.pop("allowMultipleAllocations", None)
                for capacity in device["capacity"].values():
                    capacity.pop("requestPolicy", None)
        return made


NAME = "node1-gpu.fairsched.io-0"


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def publisher(server: Server) -> Publisher:
    return Publisher(server, "node1", lambda: None)


def look(publisher: Publisher) -> None:
    publisher.watch._version = ""
    publisher.watch.step()


def publish(publisher: Publisher, found: Mapping[str, Offer]) -> None:
    look(publisher)
    publisher.step(found)


@pytest.mark.parametrize(("has_gate", "sharing"), [(True, "capacity"), (False, "devices")])
def test_what_the_server_can_is_seen_in_what_it_keeps(
    server: Server, publisher: Publisher, has_gate: bool, sharing: str
) -> None:
    server.has_gate = has_gate
    assert publisher.ask_sharing() == sharing and server.slices == {}
    server.has_gate = not has_gate
    assert publisher.ask_sharing() == sharing, "devices do not change below claims that have them"


def test_nothing_is_written_before_it_is_known_what_is_there_and_nothing_twice(
    server: Server, publisher: Publisher
) -> None:
    publisher.step(offers())
    assert server.writes == []
    publish(publisher, offers())
    publish(publisher, offers())
    assert server.writes == [f"create {NAME}"]


def test_a_gpu_that_goes_leaves_the_slice_in_a_new_generation(server: Server, publisher: Publisher) -> None:
    publish(publisher, offers(gpu(A), gpu(B)))
    publish(publisher, offers(gpu(A)))
    spec = server.slices[NAME]["spec"]
    assert (len(spec["devices"]), spec["pool"]["generation"]) == (1, 2)


def test_slices_that_a_kubelet_removed_are_made_again(server: Server, publisher: Publisher) -> None:
    publish(publisher, offers())
    server.slices.clear()
    publish(publisher, offers())
    assert set(server.slices) == {NAME}


def test_a_change_by_another_hand_is_undone(server: Server, publisher: Publisher) -> None:
    publish(publisher, offers())
    server.slices[NAME]["spec"]["devices"][0]["capacity"]["fairsched.io/share"]["value"] = "400"
    server.slices["by-hand"] = copy.deepcopy(server.slices[NAME])
    server.slices["by-hand"]["metadata"] |= {"name": "by-hand", "uid": "by-hand"}
    publish(publisher, offers())
    assert set(server.slices) == {NAME}
    assert server.slices[NAME]["spec"]["devices"][0]["capacity"]["fairsched.io/share"]["value"] == "100"


def test_who_has_removed_it_first_is_no_error(server: Server, publisher: Publisher) -> None:
    publish(publisher, offers())
    server.slices["by-hand"] = copy.deepcopy(server.slices[NAME])
    server.slices["by-hand"]["metadata"] |= {"name": "by-hand", "uid": "by-hand"}
    look(publisher)
    del server.slices["by-hand"]
    publisher.step(offers())


def test_a_server_that_drops_what_it_was_sent_is_told_of_and_not_written_to_for_ever(
    server: Server, publisher: Publisher
) -> None:
    server.has_gate = False
    look(publisher)
    loop = Loop(publisher, threading.Event(), offers)
    assert not loop.step()
    assert loop.fault is not None and "has not kept all" in loop.fault


def test_failures_are_tried_again_and_over_with_the_first_that_goes_well(
    server: Server, publisher: Publisher
) -> None:
    look(publisher)
    loop = Loop(publisher, threading.Event(), offers)
    server.is_away = True
    assert not loop.step() and loop.fault == "it hangs"
    server.is_away = False
    assert loop.step() and loop.fault is None and loop._wait_s == FIRST_WAIT_S


def test_a_bug_does_not_end_the_thread(publisher: Publisher) -> None:
    def broken() -> Mapping[str, Offer]:
        raise KeyError("x")

    assert not Loop(publisher, threading.Event(), broken).step()


def test_what_is_not_known_yet_is_not_published(server: Server, publisher: Publisher) -> None:
    look(publisher)
    assert Loop(publisher, threading.Event(), lambda: None).step() and server.writes == []


def test_the_loop_ends_when_it_is_told_to(publisher: Publisher) -> None:
    loop = Loop(publisher, threading.Event(), lambda: None)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    loop.close()
    thread.join(10)
    assert not thread.is_alive()
