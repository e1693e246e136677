# SPDX-License-Identifier: Apache-2.0
"""The controller writes one annotation on Namespaces with queues, as long as it leads, and nothing else."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fairsched.k8s.client import Refused, Unreachable
from fairsched.k8s.teams.controller import Controller, changes_of, corrections_of, kueue_version
from fairsched.k8s.teams.law import Limits, Reading
from fairsched.k8s.teams.queues import KEY, Queue, queues_of
from fairsched.k8s.teams.usage import Unknown
from tests.support import wait_until
from tests.unit.k8s.teams.test_queues import cluster_queue, local_queue

PATIENCE_S = 20.0


class Server:
    """Keeps objects, as far as the controller asks; a watch tells nothing until somebody has changed something."""

    def __init__(self, *, has_kueue: bool = True) -> None:
        self.has_kueue = has_kueue
        self.spaces: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, list[dict[str, Any]]] = {
            "clusterqueues": [cluster_queue("research", weight="1"), cluster_queue("serving", weight="3")],
            "localqueues": [local_queue("gpus", "ml", "research"), local_queue("gpus", "web", "serving")],
        }
        self.patches: list[tuple[str, Any]] = []
        self.refusals: list[Exception] = []
        self._version = 0
        for name in ("ml", "web", "other"):
            self.put(name)

    def put(self, name: str, **annotations: str | None) -> None:
        self._version += 1
        old = self.spaces.get(name, {}).get("metadata", {}).get("annotations", {})
        merged = {key: value for key, value in {**old, **annotations}.items() if value is not None}
        self.spaces[name] = {
            "metadata": {
                "name": name, "uid": name, "resourceVersion": str(self._version), "annotations": merged
            }
        }  # fmt: skip

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        if not self.has_kueue:
            raise Refused("GET", 404, {}, None)
        return {"versions": [{"version": "v1beta1"}, {"version": "v1beta2"}]}

    def patch(self, path: str, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.refusals:
            raise self.refusals.pop()
        name = path.rpartition("/")[2]
        now = self.spaces[name]["metadata"]["resourceVersion"]
        if patch["metadata"].get("resourceVersion", now) != now:
            raise Refused("PATCH", 409, {}, None)
        assert patch.keys() == {"metadata"} and patch["metadata"].keys() <= {"resourceVersion", "annotations"}
        self.patches.append((name, copy.deepcopy(patch["metadata"]["annotations"])))
        self.put(name, **patch["metadata"]["annotations"])
        return self.spaces[name]

    def listed(self, path: str, query: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], str]:
        kind = path.rpartition("/")[2]
        return list(self.spaces.values() if kind == "namespaces" else self.objects[kind]), "1"

    def events(
        self, path: str, query: Mapping[str, str], take: Callable[[Mapping[str, Any]], None], last_s: float
    ) -> None:
        raise Unreachable("no watch here: the test asks for lists")

    def texts(self) -> dict[str, str | None]:
        return {name: one["metadata"]["annotations"].get(KEY) for name, one in self.spaces.items()}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Desk:
    """A controller whose rounds the test makes, and what it is told."""

    def __init__(self, server: Server, *, bound: float = 2.0, is_open: bool = False) -> None:
        self.server, self.clock, self.leads = server, Clock(), True
        self.told: Reading | None = Reading({}, frozenset())
        self.asked = 0
        self.controller = Controller(
            server,
            reading=None if is_open else self.read,
            limits=Limits(bound),
            interval_s=5.0,
            is_leader=lambda: self.leads,
            clock=self.clock,
        )

    def read(self, teams: Mapping[str, Any]) -> Reading:
        self.asked += 1
        if self.told is None:
            raise Unknown("Prometheus is away")
        return self.told

    def round(self, dt_s: float = 5.0) -> None:
        self.clock.now_s += dt_s
        found = self.controller._changes(
            {"namespaces": list(self.server.spaces.values()), **self.server.objects}  # type: ignore[dict-item]
        )
        self.controller.write(found)


def test_namespaces_with_queues_get_their_teams_and_no_others_are_touched() -> None:
    desk = Desk(Server(), is_open=True)
    desk.round()
    assert desk.server.texts() == {"ml": "gpus=research:1", "web": "gpus=serving:3", "other": None}
    desk.round()
    assert len(desk.server.patches) == 2, "what is written is not written again"


def test_a_weight_that_is_changed_is_written_at_once() -> None:
    desk = Desk(Server(), is_open=True)
    desk.round()
    desk.server.objects["clusterqueues"][0]["spec"]["fairSharing"]["weight"] = "7"
    desk.round(0.2)
    assert desk.server.texts()["ml"] == "gpus=research:7"


def test_an_annotation_goes_with_the_last_queue() -> None:
    desk = Desk(Server(), is_open=True)
    desk.round()
    desk.server.objects["localqueues"].pop(0)
    desk.round()
    assert desk.server.texts() == {"ml": None, "web": "gpus=serving:3", "other": None}


def test_what_a_person_wrote_stays() -> None:
    server = Server()
    server.put("ml", **{"fairsched.io/weight": "9", "team": "x"})
    desk = Desk(server, is_open=True)
    desk.round()
    annotations = server.spaces["ml"]["metadata"]["annotations"]
    assert annotations == {"fairsched.io/weight": "9", "team": "x", KEY: "gpus=research:1"}


def test_a_team_that_falls_behind_is_raised_within_its_bounds_and_four_rounds() -> None:
    desk = Desk(Server())
    desk.round()
    desk.told = Reading({"research": 10.0, "serving": 590.0}, {"research", "serving"})
    for _ in range(5):
        desk.round()
    found = {name: float(str(text).rpartition(":")[2]) for name, text in desk.server.texts().items() if text}
    assert found["ml"] == pytest.approx(2, rel=0.05) and 1.5 <= found["web"] < 3


def test_rounds_that_objects_call_for_ask_prometheus_no_more_often() -> None:
    desk = Desk(Server())
    for _ in range(50):
        desk.round(0.05)
    assert desk.asked == 0
    desk.round()
    assert desk.asked == 1


def test_without_prometheus_what_is_written_is_held_for_the_window_and_then_nominal() -> None:
    desk = Desk(Server())
    desk.told = Reading({"research": 10.0, "serving": 590.0}, {"research", "serving"})
    for _ in range(8):
        desk.round()
    held, desk.told = desk.server.texts(), None
    for _ in range(119):
        desk.round()
    assert desk.server.texts() == held
    for _ in range(60):
        desk.round()
    assert desk.server.texts() == {"ml": "gpus=research:1", "web": "gpus=serving:3", "other": None}


def test_who_takes_over_goes_on_where_the_other_was() -> None:
    server = Server()
    server.put("ml", **{KEY: "gpus=research:1.8"})
    server.put("web", **{KEY: "gpus=serving:2"})
    desk = Desk(server)
    desk.told = Reading({}, frozenset())
    desk.round()
    assert server.patches == []
    assert desk.controller._corrections == {
        "research": pytest.approx(math.log(1.8)), "serving": pytest.approx(math.log(2 / 3))
    }  # fmt: skip


def test_what_was_written_out_of_bounds_comes_into_them() -> None:
    """By another bound, or another hand."""
    server = Server()
    server.put("ml", **{KEY: "gpus=research:1000000"})
    desk = Desk(server)
    desk.round()
    assert server.texts()["ml"] == "gpus=research:2"


def test_who_does_not_lead_writes_nothing_also_in_the_middle_of_a_round() -> None:
    desk = Desk(Server(), is_open=True)
    desk.leads = False
    desk.round()
    assert desk.server.patches == []
    left = iter([True, False])
    desk.controller._is_leader = lambda: next(left)
    desk.round()
    assert len(desk.server.patches) == 1


@pytest.mark.parametrize("status", [404, 409])
def test_a_namespace_that_has_gone_or_changed_keeps_nobody_else_waiting(status: int) -> None:
    desk = Desk(Server(), is_open=True)
    desk.server.refusals = [Refused("PATCH", status, {}, None)]
    desk.round()
    assert len(desk.server.patches) == 1
    desk.round()
    assert len(desk.server.patches) == 2, "seen as it is now"


def test_a_namespace_that_the_server_refuses_keeps_nobody_else_waiting_and_is_told() -> None:
    """Its annotation may be too long, or an admission policy of somebody may forbid it."""
    desk = Desk(Server(), is_open=True)
    desk.server.refusals = [Refused("PATCH", 422, {}, None)]
    with pytest.raises(Refused):
        desk.round()
    assert len(desk.server.patches) == 1


@pytest.mark.parametrize("weight", ["0", "999999", "0.001"])
def test_what_is_written_of_extreme_weights_is_what_nodes_read(weight: str) -> None:
    server = Server()
    server.objects["clusterqueues"][0]["spec"]["fairSharing"]["weight"] = weight
    desk = Desk(server, bound=10.0)
    for team in ("research", "serving"):
        desk.told = Reading({team: 590.0}, {"research", "serving"})
        for _ in range(20):
            desk.round()
            assert all(text is None or queues_of(text) for text in server.texts().values())


def test_a_namespace_that_was_changed_meanwhile_is_not_written_over() -> None:
    """The write names the version that was read."""
    server = Server()
    found = changes_of(list(server.spaces.values()), {"ml": {"q": Queue("a", 1.0)}}, {"a": 1.0}, {})
    server.put("ml", **{KEY: "q=b:7"})
    Desk(server).controller.write(found)
    assert server.texts()["ml"] == "q=b:7"


def test_without_kueue_nothing_happens() -> None:
    server = Server(has_kueue=False)
    assert kueue_version(server) is None
    assert Desk(server).controller.rehearse() is None
    assert kueue_version(Server()) == "v1beta2"


def test_a_rehearsal_says_what_would_be_written_and_writes_nothing() -> None:
    server = Server()
    found = Desk(server).controller.rehearse()
    assert found is not None and [(one.namespace, one.after) for one in found] == [
        ("ml", "gpus=research:1"),
        ("web", "gpus=serving:3"),
    ]
    assert server.patches == []


def test_corrections_of_odd_annotations_are_none() -> None:
    assert corrections_of({"a": 2.0}, {"ml": {"q": Queue("b", 5.0)}}) == {"a": 0.0}


def test_it_runs_until_it_is_closed_and_survives_what_the_server_answers() -> None:
    server = Server()
    server.refusals = [RuntimeError("a bug"), Unreachable("away")]
    desk = Desk(server, is_open=True)
    thread = threading.Thread(target=desk.controller.run)
    thread.start()
    try:
        for _ in range(2):
            wait_until(lambda: not desk.controller._due.is_set(), PATIENCE_S, "a round is over")
            desk.controller.wake()
        wait_until(lambda: bool(server.texts()["ml"] and server.texts()["web"]), PATIENCE_S, "all is written")
    finally:
        desk.controller.close()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
