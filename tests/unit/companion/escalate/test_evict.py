# SPDX-License-Identifier: Apache-2.0
"""The step evict against a server that grants, refuses, conflicts and fails; over real HTTPS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairsched.companion.escalate.evict import MARK, EvictSettings, EvictStep
from fairsched.companion.escalate.model import Kind, Outcome, Result
from fairsched.companion.escalate.steps import carry_out
from fairsched.k8s.client import KubeClient
from fairsched.protocol.status import StatusReport, TenantStatus
from tests.unit.companion.escalate.api_server import NODE, ApiServer, babble, hang_up, pod, refuse
from tests.unit.companion.escalate.reports import (
    GPU,
    OTHER_GPU,
    cgroup,
    given_up_after,
    order,
    report,
    tenant,
)

SUFFERER = pod("chat", priority=1_000_000)
SETTINGS = EvictSettings(NODE, labels={"fairsched.io/busy": "true"}, wait_s=3.0)


@pytest.fixture(autouse=True)
def sufferer(api: ApiServer) -> None:
    """The pod that is to be helped is there."""
    api.add(SUFFERER)


def neighbours(*names: str, on: tuple[str, ...] = (GPU,), **more: Any) -> list[TenantStatus]:
    """A tenant for the pod of each name."""
    return [tenant(name, cgroups=(cgroup(pod(name)),), on=on, **more) for name in names]


SEEN = report(neighbours("chat", "a", "b", "c", "d"))


class Clock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, for_s: float) -> None:
        self.now_s += for_s


def take(
    client: KubeClient,
    settings: EvictSettings = SETTINGS,
    seen: StatusReport | None = SEEN,
    check: Callable[[], None] = lambda: None,
    **more: Any,
) -> tuple[Result, list[Any], Clock]:
    """The result of an order, what was announced before anything was changed, and how long was slept."""
    clock, announced = Clock(), list[Any]()
    step = EvictStep(lambda: client, settings, sleep=clock.pass_by, clock=clock)
    result = carry_out(step, order("evict", **more), seen, announced.append, check)
    return result, announced, clock


def is_untouched(api: ApiServer) -> bool:
    node = api.nodes[NODE]
    metadata = node["metadata"]
    return not node["spec"] and not metadata.get("labels") and not metadata.get("annotations")


def test_the_lowest_priority_is_evicted_and_the_node_cordoned_before(
    api: ApiServer, client: KubeClient
) -> None:
    api.add(pod("a", priority=0), pod("b", priority=-10))
    result, announced, _ = take(client)
    assert result.outcome is Outcome.DONE, result.detail
    assert list(api.pods) == ["chat", "a"]
    node = api.nodes[NODE]
    assert node["spec"]["unschedulable"] and node["metadata"]["labels"] == {"fairsched.io/busy": "true"}
    assert announced == [result.undo]
    writes = [path for method, path, _ in api.calls if method in ("PATCH", "POST")]
    assert writes == [f"/api/v1/nodes/{NODE}", "/api/v1/namespaces/team/pods/b/eviction"]
    assert "team/b (priority -10)" in result.detail and "it has gone" in result.detail


def test_taking_it_back_uncordons_what_we_cordoned(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("a"))
    done, _, _ = take(client)
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=done.undo)
    assert (back.outcome, back.detail) == (Outcome.ROLLED_BACK, "node1 is uncordoned")
    assert is_untouched(api)
    again, _, _ = take(client, kind=Kind.ROLLBACK, undo=done.undo)
    assert again.outcome is Outcome.ROLLED_BACK and "left alone" in again.detail


def test_labels_are_put_back_as_they_were(api: ApiServer, client: KubeClient) -> None:
    labels = {"a": "ours", "b": "ours", "c": "ours", "d": "ours"}
    api.nodes[NODE]["metadata"]["labels"] = {"a": "theirs", "b": "ours", "e": "other"}
    api.add(pod("a"))
    done, _, _ = take(client, replace(SETTINGS, labels=labels))
    assert api.nodes[NODE]["metadata"]["labels"] == {**labels, "e": "other"}
    api.nodes[NODE]["metadata"]["labels"]["d"] = "changed meanwhile"
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.ROLLED_BACK
    now = api.nodes[NODE]["metadata"]["labels"]
    assert now == {"a": "theirs", "b": "ours", "d": "changed meanwhile", "e": "other"}


def test_a_cordon_that_is_not_ours_is_never_taken_back(api: ApiServer, client: KubeClient) -> None:
    api.nodes[NODE]["spec"]["unschedulable"] = True
    api.add(pod("a"))
    done, _, _ = take(client, replace(SETTINGS, labels={}))
    assert done.outcome is Outcome.DONE and done.undo is not None and not done.undo["is_cordoned"]
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.ROLLED_BACK and api.nodes[NODE]["spec"]["unschedulable"]
    assert api.made("PATCH") == []


def test_a_cordon_that_somebody_has_made_his_own_is_left_alone(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("a"))
    done, _, _ = take(client)
    del api.nodes[NODE]["metadata"]["annotations"][MARK]
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=done.undo)
    assert "left alone" in back.detail and api.nodes[NODE]["spec"]["unschedulable"]


def test_a_node_with_the_mark_of_an_earlier_order_keeps_it(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("a"), pod("b"))
    first, _, _ = take(client)
    second, _, _ = take(client, id=8)
    assert first.undo is not None and second.undo is not None
    assert not second.undo["is_cordoned"] and second.undo["labels"] == {}
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=first.undo)
    assert back.detail == "node1 is uncordoned" and is_untouched(api)


def test_a_disruption_budget_means_the_next_candidate(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("a", priority=-10), pod("b", priority=0))
    api.budgeted.add("a")
    result, _, _ = take(client)
    assert result.outcome is Outcome.DONE and list(api.pods) == ["chat", "a"]
    assert "team/a (priority -10): its disruption budget forbids it now" in result.detail


def test_when_every_budget_forbids_it_the_node_is_as_before(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("a"), pod("b"))
    api.budgeted |= {"a", "b"}
    result, _, _ = take(client)
    assert result.outcome is Outcome.FAILED and not result.is_in_force
    assert "no eviction was granted" in result.detail and len(api.pods) == 3
    assert is_untouched(api)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (refuse(404, "NotFound"), "gone by itself"),
        (refuse(409, "Conflict"), "another pod has its name"),
        (refuse(500, "InternalError", "This pod has more than one PodDisruptionBudget"), "contradict"),
    ],
)
def test_a_candidate_that_cannot_be_had_means_the_next(
    api: ApiServer, client: KubeClient, fault: Any, says: str
) -> None:
    api.add(pod("a", priority=-10), pod("b"))
    api.fail("POST", "eviction", fault)
    result, _, _ = take(client)
    assert result.outcome is Outcome.DONE and says in result.detail and list(api.pods) == ["chat", "a"]


@pytest.mark.parametrize("status", [403, 422])
def test_a_refusal_that_is_of_no_pod_ends_it_and_puts_the_node_back(
    api: ApiServer, client: KubeClient, status: int
) -> None:
    api.add(pod("a"), pod("b"))
    api.fail("POST", "eviction", refuse(status, "Forbidden", "you may not"))
    result, _, _ = take(client)
    assert result.outcome is Outcome.FAILED and "you may not" in result.detail and not result.is_in_force
    assert len(api.made("POST")) == 1 and len(api.pods) == 3 and is_untouched(api)


@pytest.mark.parametrize(
    ("fault", "slept_s"),
    [
        (refuse(503, "ServiceUnavailable"), 1.0),
        (refuse(500, "InternalError", "etcd"), 1.0),
        (refuse(429, "TooManyRequests", "slow down", headers={"Retry-After": "4"}), 4.0),
        (refuse(429, "TooManyRequests", "slow down", headers={"Retry-After": "9000"}), 10.0),
    ],
)
def test_an_unwell_server_is_asked_again_a_little_later(
    api: ApiServer, client: KubeClient, fault: Any, slept_s: float
) -> None:
    api.add(pod("a"))
    api.fail("POST", "eviction", fault)
    result, _, clock = take(client)
    assert result.outcome is Outcome.DONE and clock.now_s == slept_s


@pytest.mark.parametrize("fault", [refuse(503, "ServiceUnavailable"), babble, hang_up])
def test_a_server_that_stays_unwell_is_given_up_and_the_node_put_back(
    api: ApiServer, client: KubeClient, fault: Any
) -> None:
    api.add(pod("a"), pod("b"))
    api.fail("POST", "eviction", fault, times=9)
    result, _, _ = take(client)
    assert result.outcome is Outcome.FAILED and not result.is_in_force
    assert len(api.made("POST")) <= 3 and is_untouched(api)


def test_a_node_that_cannot_be_put_back_stays_in_force(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("a"))

    def forbid_and_break_down(handler: Any) -> None:
        api.fail("PATCH", "nodes", refuse(503, "ServiceUnavailable"))
        refuse(403, "Forbidden")(handler)

    api.fail("POST", "eviction", forbid_and_break_down)
    result, _, _ = take(client)
    assert result.outcome is Outcome.FAILED and result.is_in_force
    assert api.nodes[NODE]["spec"]["unschedulable"]
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=result.undo)
    assert back.outcome is Outcome.ROLLED_BACK and is_untouched(api)


def test_a_pod_that_takes_its_time_is_waited_for_a_while(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("a"))
    api.lingering.add("a")
    result, _, clock = take(client)
    assert result.outcome is Outcome.DONE and "it still ends after 3 s" in result.detail
    assert clock.now_s == 3.0


def test_without_a_candidate_nothing_is_touched_and_the_reasons_are_counted(
    api: ApiServer, client: KubeClient
) -> None:
    api.add(pod("a", owner="DaemonSet"), pod("b", priority=5), pod("c", priority=5), pod("z", limits={}))
    result, announced, _ = take(client)
    assert result.outcome is Outcome.SKIPPED
    assert result.detail == (
        "no pod on node1 may be evicted: 1 of a DaemonSet, 2 of a priority above max_priority, 1 the sufferer's own"
    )
    assert announced == [] and is_untouched(api)


def test_a_dry_run_asks_the_server_what_it_would_grant_and_changes_nothing(
    api: ApiServer, client: KubeClient
) -> None:
    api.add(pod("a", priority=-10), pod("b"))
    api.budgeted.add("a")
    result, announced, _ = take(client, is_dry_run=True)
    assert result.outcome is Outcome.DRY_RUN and announced == []
    assert result.detail.startswith("would cordon the node and evict team/a (priority -10) or one of 1 more")
    assert "the server would grant team/b" in result.detail
    assert len(api.pods) == 3 and is_untouched(api) and api.made("PATCH") == []
    back, _, _ = take(client, is_dry_run=True, kind=Kind.ROLLBACK, undo=result.undo)
    assert back.outcome is Outcome.DRY_RUN and api.made("PATCH") == []


def test_a_node_that_changes_while_it_is_put_back_is_looked_at_again(
    api: ApiServer, client: KubeClient
) -> None:
    api.add(pod("a"))
    done, _, _ = take(client)
    api.fail("PATCH", "nodes", refuse(409, "Conflict"), times=2)
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.ROLLED_BACK and is_untouched(api)
    api.add(pod("a"))
    done, _, _ = take(client)
    api.fail("PATCH", "nodes", refuse(409, "Conflict"), times=5)
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.FAILED and "changes faster" in back.detail


def test_a_node_that_is_gone_needs_no_uncordon(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("a"))
    done, _, _ = take(client)
    api.nodes.clear()
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.ROLLED_BACK and "is gone" in back.detail


def test_an_unknown_node_is_a_failure_that_names_it(api: ApiServer, client: KubeClient) -> None:
    result, _, _ = take(client, replace(SETTINGS, node="elsewhere"))
    assert result.outcome is Outcome.FAILED and 'nodes "elsewhere" not found' in result.detail


@pytest.mark.parametrize(("gpu", "goes"), [(GPU, "a"), (OTHER_GPU, "b"), (None, "a")])
def test_only_who_is_on_the_gpu_of_the_suffering_is_evicted(
    api: ApiServer, client: KubeClient, gpu: str | None, goes: str
) -> None:
    """The lowest priority of all is on neither GPU; without a GPU in the order it is where the sufferer has demand."""
    api.add(pod("a", priority=-5), pod("b", priority=-5), pod("c", priority=-50))
    seen = report(
        [
            *neighbours("chat", "a"),
            *neighbours("b", on=(), contexts_by_gpu={OTHER_GPU: 1}),
            *neighbours("c", on=(), contexts_by_gpu={GPU: 0}),
        ]
    )
    result, _, _ = take(client, seen=seen, gpu=gpu)
    assert result.outcome is Outcome.DONE, result.detail
    assert {"a", "b", "c"} - set(api.pods) == {goes}


@pytest.mark.parametrize(
    ("about", "seen", "says"),
    [
        ({"tenant": None}, SEEN, "not known which tenant suffers"),
        ({"tenant": "gone"}, SEEN, "tenant gone is gone"),
        ({}, report([tenant("chat"), *neighbours("a")]), "which pod of this node is that of chat"),
        (
            {},
            report([*neighbours("a"), tenant("chat", cgroups=(cgroup(pod("elsewhere")),))]),
            "which pod of this node",
        ),
        ({"gpu": None}, report([*neighbours("chat", on=()), *neighbours("a")]), "on which GPU chat suffers"),
        ({}, None, "the daemon has not told its status"),
    ],
)
def test_without_knowing_whom_it_is_to_help_nobody_is_evicted(
    api: ApiServer, client: KubeClient, about: dict[str, Any], seen: StatusReport | None, says: str
) -> None:
    """The pod that is to be helped could be the one that goes."""
    api.add(pod("a"))
    result, announced, _ = take(client, seen=seen, **about)
    assert result.outcome is Outcome.SKIPPED and says in result.detail
    assert announced == [] and len(api.pods) == 2 and is_untouched(api)


@pytest.mark.parametrize("changes", [0, 1, 2, 3])
def test_who_was_given_up_evicts_nobody_more_and_patches_no_node(
    api: ApiServer, client: KubeClient, changes: int
) -> None:
    """It marks the node, asks for a, for b, and would put the node back: as much as it may is done, and no more."""
    api.add(pod("a"), pod("b"))
    api.budgeted |= {"a", "b"}
    result, _, _ = take(client, check=given_up_after(changes))
    assert result.outcome is Outcome.FAILED and result.is_in_force
    assert len(api.made("PATCH")) == min(changes, 1) and len(api.made("POST")) == max(0, changes - 1)


def test_who_was_given_up_takes_nothing_back(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("a"))
    done, _, _ = take(client)
    back, _, _ = take(client, kind=Kind.ROLLBACK, undo=done.undo, check=given_up_after(0))
    assert back.outcome is Outcome.FAILED and api.nodes[NODE]["spec"]["unschedulable"]
