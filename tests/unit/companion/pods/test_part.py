# SPDX-License-Identifier: Apache-2.0
"""The daemon is told what pods come to, once; a person what is in the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from fairsched.base.files import replace_file
from fairsched.companion.part import Finding, Moment
from fairsched.companion.pods import part as pods_part
from fairsched.companion.pods.part import PodPart
from fairsched.companion.pods.policy import make_layer
from fairsched.companion.pods.shares import SharesFile
from fairsched.errors import ControlError, FairschedError
from fairsched.k8s.client import Refused, Unreachable
from fairsched.k8s.objects import LIVING
from tests.unit.companion.pods.test_policy import pod, space
from tests.unit.companion.pods.test_shares import sharing
from tests.unit.k8s.policies.made import policy
from tests.unit.k8s.test_watch import Server


class Api(Server):
    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        raise AssertionError("nobody asks what the server knows while it answers")

    def __init__(self) -> None:
        super().__init__()
        self.events_made: list[tuple[str, Mapping[str, Any]]] = []
        self.trouble: FairschedError | None = None

    def report_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.events_made.append((namespace, event))


class Node:
    """The daemon."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []
        self.file, self.is_mute = "tenants: {}\nkubernetes: {watch_pods: true}\n", False

    def file_text(self) -> str:
        return self.file

    def set_pods(self, layer: Mapping[str, Any]) -> None:
        if self.is_mute:
            raise ControlError("nobody answers")
        self.told.append(layer)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def part(api: Api, node: Node) -> PodPart:
    return PodPart(cast(Any, node), api, "node1")


def see(part: PodPart, api: Api, pods: list[Any], namespaces: list[Any]) -> None:
    """One list of each."""
    for watch, items in ((part._pods, pods), (part._namespaces, namespaces)):
        watch._version = ""
        api.lists, api.watches = [(items, "1")], [[]]
        watch.step()


def report(part: PodPart) -> None:
    """One look, and all Events that are to be made."""
    part.step()
    while part.events.step():
        pass


def faults(part: PodPart) -> list[str]:
    found = part.take(cast(Moment, None))
    assert isinstance(found, Finding)
    return list(found.faults)


def test_the_daemon_is_told_when_both_lists_were_seen_and_when_something_is_another(
    part: PodPart, api: Api, node: Node
) -> None:
    part.step()
    api.lists, api.watches = [([pod("a", weight="2")], "1")], [[]]
    part._pods.step()
    part.step()
    assert node.told == [], "namespaces are not known yet: the layer of before holds"
    see(part, api, [pod("a", weight="2")], [space(weight="3")])
    part.step()
    part.step()
    (layer,) = node.told
    assert layer["ml"]["weight"] == 3 and layer["ml"]["children"]["a"]["weight"] == 2
    see(part, api, [pod("a", weight="5")], [space(weight="3")])
    part.step()
    assert node.told[1]["ml"]["children"]["a"]["weight"] == 5
    see(part, api, [], [space(weight="3")])
    part.step()
    assert node.told[2] == {}


def test_the_watch_of_pods_is_that_of_this_node(part: PodPart) -> None:
    assert part._pods._query == {"fieldSelector": f"spec.nodeName=node1,{LIVING}"}


def test_of_a_pod_is_remembered_what_it_comes_to_and_no_more(part: PodPart, api: Api) -> None:
    """Its maker decides how large the rest is."""
    one = sharing("a", 25, weight="2")
    one["metadata"] |= {"managedFields": [{"x": "y" * 1000}]}
    one["metadata"]["annotations"]["example.com/long"] = "x" * 1000
    one["spec"]["containers"][0]["env"] = [{"name": "LONG", "value": "x" * 1000}]
    one["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    one["status"]["conditions"] = [{"type": "Ready", "message": "x" * 1000}]
    see(part, api, [one], [])
    (kept,) = part._pods.items() or ()
    assert len(json.dumps(kept)) < 500
    assert make_layer([kept], []).layer == make_layer([one], []).layer
    assert kept["spec"]["resourceClaims"] == one["spec"]["resourceClaims"]


def test_what_changes_of_a_pod_and_says_nothing_wakes_nobody(part: PodPart, api: Api) -> None:
    see(part, api, [pod("a", weight="2")], [])
    part._due.clear()
    again = pod("a", weight="2")
    again["status"] = {"conditions": [{"type": "Ready"}]}
    part._pods._take({"type": "MODIFIED", "object": again})
    assert not part._due.is_set()


def test_an_outage_is_said_after_a_moment_and_nothing_is_told_for_it(
    part: PodPart, api: Api, node: Node
) -> None:
    now_s = 0.0
    part._pods._clock = lambda: now_s
    see(part, api, [pod("a", weight="2")], [])
    part.step()
    part._pods._note("connection refused")
    assert faults(part) == []
    now_s = 61.0
    assert faults(part) == [
        "pods: the API server has told nothing for 61 s, what it said before holds: connection refused"
    ]
    part.step()
    assert len(node.told) == 1


def test_who_is_not_understood_is_said_and_has_one_event(part: PodPart, api: Api) -> None:
    see(part, api, [pod("a", weight="much")], [])
    report(part)
    report(part)
    assert faults(part) == ["pods: ml/a: fairsched.io/weight: 'much': it is not a number"]
    ((namespace, event),) = api.events_made
    assert namespace == "ml" and event["type"] == "Warning"
    assert event["involvedObject"]["uid"] == "u-a" and "'much'" in event["message"]
    see(part, api, [pod("a", weight="more")], [])
    report(part)
    assert len(api.events_made) == 2, "another text is another event"


@pytest.mark.parametrize(
    ("trouble", "is_passing"),
    [
        (Unreachable("refused"), True),
        (Refused("POST", 429, {"reason": "TooManyRequests"}, 1.0), True),
        (Refused("POST", 403, {"reason": "Forbidden"}, None), False),
    ],
)
def test_an_event_that_cannot_be_made_keeps_nobody_from_a_share_and_is_made_later(
    part: PodPart, api: Api, node: Node, trouble: FairschedError, is_passing: bool
) -> None:
    api.trouble = trouble
    see(part, api, [pod("a", weight="much"), pod("b", weight="2")], [])
    part.step()
    assert node.told[0]["ml"]["children"]["b"]["weight"] == 2
    if is_passing:
        with pytest.raises(type(trouble)):
            part.events.step()
    else:
        assert part.events.step(), "it is said in the log, and not tried again"
    api.trouble = None
    report(part)
    assert len(api.events_made) == is_passing


def test_who_is_complained_of_without_end_keeps_no_other_from_its_event(part: PodPart, api: Api) -> None:
    """One after the other, namespaces in turn: who may make pods decides how much there is to complain of."""
    many = [pod(f"p{number}", "evil", weight="x") for number in range(300)]
    see(part, api, [*many, pod("a", "ml", weight="x"), pod("b", "web", weight="x")], [])
    part.step()
    for _ in range(3):
        part.events.step()
    assert [namespace for namespace, _ in api.events_made] == ["evil", "ml", "web"]
    report(part)
    assert len(api.events_made) == 302
    see(part, api, [], [])
    report(part)
    assert len(part.events._made) <= 256, "what nobody complains of any more is forgotten"


def test_keys_that_nobody_knows_are_one_complaint_however_many(part: PodPart, api: Api) -> None:
    see(part, api, [pod("a", **{f"k{number}": "x" for number in range(1000)})], [])
    report(part)
    ((_, event),) = api.events_made
    assert event["message"].startswith(
        "fairsched.io/k0, fairsched.io/k1, fairsched.io/k2 and 997 more: there is no such key"
    )


def test_a_daemon_that_does_not_take_it_is_told_again(part: PodPart, api: Api, node: Node) -> None:
    node.is_mute = True
    see(part, api, [pod("a", weight="2")], [])
    with pytest.raises(ControlError):
        part.step()
    node.is_mute = False
    part.step()
    assert len(node.told) == 1


def test_what_the_file_has_is_left_to_it_and_said(part: PodPart, api: Api, node: Node) -> None:
    node.file = 'tenants: {team: {match: {pod: "ml/*"}}}\nkubernetes: {watch_pods: true}\n'
    see(part, api, [pod("a", weight="2"), pod("b", "web")], [])
    part.step()
    assert set(node.told[0]) == {"web"}
    (said,) = faults(part)
    assert said.startswith("pods: ml is left to the file: ")


def test_the_configuration_is_read_once_for_each_change_of_it_and_not_at_each_event(
    part: PodPart, api: Api, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {"parsed": 0, "fitted": 0}

    def counted(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*given: Any) -> Any:
            seen[what] += 1
            return call(*given)

        return count

    monkeypatch.setattr(pods_part, "from_bytes", counted("parsed", pods_part.from_bytes))
    monkeypatch.setattr(pods_part, "fitting", counted("fitted", pods_part.fitting))
    for _ in range(20):  # events of pods that say nothing new
        see(part, api, [pod("a", weight="2")], [space()])
        part.step()
    assert seen == {"parsed": 1, "fitted": 1}
    see(part, api, [pod("a", weight="3")], [space()])
    part.step()
    assert seen == {"parsed": 1, "fitted": 2} and len(node.told) == 2
    node.file = 'tenants: {team: {match: {pod: "ml/*"}}}\nkubernetes: {watch_pods: true}\n'
    part.step()
    assert seen == {"parsed": 2, "fitted": 3}
    assert node.told[-1] == {}, "the file goes before, from the moment that it says so"
    node.file = "tenants: {}\ntenant_defaults: {min: 100%}\nkubernetes: {watch_pods: true}\n"
    see(part, api, [pod("a", weight="3"), pod("b", "web")], [space()])
    part.step()
    assert node.told[-1]["web"]["min"] == 0.0, "what the file guarantees by default is read anew as well"


def test_many_complaints_are_summed_up(part: PodPart, api: Api) -> None:
    see(part, api, [pod(f"p{i}", weight="x") for i in range(20)], [])
    part.step()
    assert len(faults(part)) == 7 and faults(part)[-1].startswith("pods: and 14 more")


def test_a_file_of_shares_that_is_another_is_noticed_and_one_that_makes_no_sense_is_said(
    api: Api, node: Node, tmp_path: Path
) -> None:
    file = tmp_path / "shares.json"
    part = PodPart(cast(Any, node), api, "node1", SharesFile(file))
    see(part, api, [sharing("a", 150)], [])
    part.step()
    assert "gpu_parts" not in node.told[-1]["ml"]
    part._due.clear()
    replace_file(file, b'{"version": 1, "pods": {"ml/a": {"GPU-a": 100, "GPU-b": 50}}}', is_durable=False)
    part._wait()
    part.step()
    assert node.told[-1]["ml"]["gpu_parts"] == {"GPU-a": pytest.approx(2 / 3), "GPU-b": pytest.approx(1 / 3)}
    replace_file(file, b"nonsense", is_durable=False)
    part.step()
    (said,) = faults(part)
    assert said.startswith(f"pods: which GPUs shares are of is not known: {file}: ")
    assert len(node.told) == 2, "what it said before holds"


# ---- policies ----


@pytest.fixture
def ruled(api: Api, node: Node) -> PodPart:
    return PodPart(cast(Any, node), api, "node1", has_policies=True)


def see_policies(part: PodPart, api: Api, *policies: dict[str, Any]) -> None:
    assert part._policies is not None
    part._policies._version = ""
    api.lists, api.watches = [(list(policies), "1")], [[]]
    part._policies.step()


def test_nothing_is_told_before_the_policies_are_known(ruled: PodPart, api: Api, node: Node) -> None:
    """A share must not rise for the moment in which its bound is not known yet."""
    see(ruled, api, [pod("a", weight="9")], [space()])
    ruled.step()
    assert node.told == []
    see_policies(ruled, api, policy("p", names=["ml"], share={"weight": 3}, pods=[{"max": {"weight": 4}}]))
    ruled.step()
    assert node.told[0]["ml"]["weight"] == 3
    assert node.told[0]["ml"]["children"]["a"]["weight"] == 4


def test_a_policy_that_changes_is_told_at_once_and_one_that_goes_too(
    ruled: PodPart, api: Api, node: Node
) -> None:
    see(ruled, api, [pod("a")], [space()])
    for weight in (3, 5):
        see_policies(ruled, api, policy("p", names=["ml"], share={"weight": weight}))
        ruled.step()
    see_policies(ruled, api)
    ruled.step()
    assert [one["ml"].get("weight") for one in node.told] == [3, 5, None]


def test_a_pod_beyond_its_bounds_has_an_event_of_another_reason(ruled: PodPart, api: Api) -> None:
    see(ruled, api, [pod("a", weight="9")], [space()])
    see_policies(ruled, api, policy("p", pods=[]))
    report(ruled)
    report(ruled)
    ((_, event),) = api.events_made
    assert event["reason"] == "FairschedOutOfBounds"
    assert event["message"] == "fairsched.io/weight: 9 is beyond policy p, no rule matches: it gets 1"
    assert faults(ruled) == [f"pods: ml/a: {event['message']}"]


def test_an_outage_keeps_the_policy_and_is_said(ruled: PodPart, api: Api, node: Node) -> None:
    now_s = 0.0
    see(ruled, api, [pod("a")], [space()])
    see_policies(ruled, api, policy("p", names=["ml"], share={"weight": 3}))
    ruled.step()
    assert ruled._policies is not None
    ruled._policies._clock = lambda: now_s
    ruled._policies._note("connection refused")
    now_s = 61.0
    ruled.step()
    assert len(node.told) == 1
    assert faults(ruled) == [
        "pods: the API server has told nothing for 61 s, what it said before holds: connection refused"
    ]


def test_the_class_that_a_node_gives_everybody_is_a_bound_as_well(
    ruled: PodPart, api: Api, node: Node
) -> None:
    node.file = "tenant_defaults: {class: batch}\nkubernetes: {watch_pods: true}\n"
    see(ruled, api, [pod("a", **{"class": "latency"})], [space()])
    see_policies(ruled, api, policy("p", pods=[{}]))
    ruled.step()
    assert node.told[0]["ml"]["children"]["a"]["class"] == "batch"
