# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of objects: the reckoning of each pod and node, and words that no live test can bring about.

tests/k8s/test_doctor.py brings the others about.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.cli.k8s.doctor import render
from fairsched.k8s.doctor.cluster import Cluster, Row, requests_of
from fairsched.k8s.doctor.pods import keeps_from, tolerates, used_by_node
from fairsched.k8s.doctor.read import judge
from fairsched.k8s.doctor.starts import of_message

GPU = "nvidia.com/gpu"


def node(
    name: str = "n", gpus: int | None = 8, *, taints: list[dict[str, str]] | None = None, **labels: str
) -> Any:
    room = {"cpu": "8", "memory": "64Gi", "pods": "110", **({} if gpus is None else {GPU: str(gpus)})}
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", **labels}},
        "spec": {"taints": taints or []},
        "status": {"capacity": room, "allocatable": dict(room), "conditions": [ready]},
    }


def pod(name: str = "p", gpus: int = 1, **spec: Any) -> Any:
    container = {"name": "c", "resources": {"limits": {GPU: str(gpus)}}}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}"},
        "spec": {"containers": [container], **spec},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1"}],
        },
    }


def agent(on: str, *, ready: bool = True) -> Any:
    condition = {"type": "Ready", "status": str(ready)}
    return {
        "metadata": {"name": f"a-{on}", "namespace": "fs", "labels": {"app.kubernetes.io/name": "fairsched"}},
        "spec": {"nodeName": on, "hostPID": True},
        "status": {"phase": "Running", "conditions": [condition]},
    }


def codes(*, nodes: list[Any], pods: list[Any] | None = None, **more: Any) -> list[tuple[str, str]]:
    rows = judge(Cluster(nodes, pods or [], **more))
    assert all(len(line) <= 80 for line in render(rows))
    assert all(row.remedy or row.code == "pod-scheduler" for row in rows if row.state == "bad")
    return [(row.state, row.code) for row in rows]


def test_a_well_node_with_a_ready_agent_is_well() -> None:
    assert codes(nodes=[node()], pods=[agent("n")]) == [("ok", "node-plugin"), ("ok", "agent")]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda one: one["status"].update(capacity={}, allocatable={}), ("bad", "node-plugin")),
        (lambda one: one["status"]["allocatable"].update({GPU: "0"}), ("bad", "node-devices")),
        (lambda one: one["status"]["allocatable"].pop(GPU), ("bad", "node-devices")),
        (lambda one: one["status"]["allocatable"].update({GPU: "7"}), ("warn", "node-devices")),
        (lambda one: one["status"].update(conditions=[]), ("bad", "node-not-ready")),
        (lambda one: one["spec"].update(unschedulable=True), ("warn", "node-cordoned")),
        (lambda one: one["metadata"].update(labels={}), ("ok", "node-plugin")),
    ],
)
def test_what_is_wrong_with_a_node(change: Any, code: tuple[str, str]) -> None:
    one = node()
    change(one)
    assert code in codes(nodes=[one], pods=[agent("n")])


def test_agents_that_are_away_or_not_ready() -> None:
    assert ("warn", "agent-none") in codes(nodes=[node()])
    assert ("warn", "agent-absent") in codes(nodes=[node(), node("m")], pods=[agent("n")])
    assert ("bad", "agent-not-ready") in codes(nodes=[node()], pods=[agent("n", ready=False)])
    assert codes(nodes=[{"metadata": {"name": "cpu"}}]) == [("warn", "no-gpu-node")]


def test_a_pod_that_is_only_called_an_agent_is_none() -> None:
    """A tenant writes any label; that it sees all processes of the node somebody has to allow."""
    false = agent("n")
    del false["spec"]["hostPID"]
    assert ("warn", "agent-none") in codes(nodes=[node()], pods=[false])


def test_a_pod_that_nothing_keeps_away_is_left_to_the_scheduler() -> None:
    found = codes(nodes=[node()], pods=[agent("n"), pod()])
    assert ("warn", "pod-other") in found and not [one for one in found if one[0] == "bad"]


def test_what_others_use_is_not_free() -> None:
    there = {**pod("q", 7), "status": {"phase": "Running"}}
    there["spec"]["nodeName"] = "n"
    used = used_by_node([there])
    assert used["n"][GPU] == 7
    (reason,) = keeps_from(pod(gpus=2), node(), used["n"])
    assert (reason.code, "of 8 are 1 free" in reason.text) == ("pod-gpu", True)
    assert keeps_from(pod(gpus=1), node(), used["n"]) == []
    there["status"]["phase"] = "Succeeded"
    assert used_by_node([there]) == {}


def test_requests_are_added_up_as_the_scheduler_does() -> None:
    """Of each resource by itself; overhead is beside it."""

    def asks(number: int, **more: Any) -> Any:
        return {"resources": {"limits": {GPU: number}}, **more}

    two = {"resources": {"limits": {"memory": "1Gi"}, "requests": {GPU: 2}}}
    one = {
        "spec": {"containers": [asks(1), two], "initContainers": [asks(1, restartPolicy="Always"), asks(4)]}
    }
    assert requests_of(one) == {GPU: 5, "memory": 1 << 30}
    assert requests_of({"spec": {"containers": [two]}}) == {GPU: 2, "memory": 1 << 30}
    assert requests_of({"spec": {"containers": [{}], "overhead": {"cpu": "250m"}}}) == {"cpu": Fraction(1, 4)}


def test_a_taint_that_only_prefers_other_nodes_keeps_nobody_away() -> None:
    soft = {"key": "a", "effect": "PreferNoSchedule"}
    assert keeps_from(pod(), node(taints=[soft]), {}) == []


@pytest.mark.parametrize(
    "taints", [[], [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]]
)
def test_a_cordon_is_one_reason_with_its_taint_or_without(taints: list[dict[str, str]]) -> None:
    """The taint comes a moment after the cordon."""
    cordoned = node(taints=taints)
    cordoned["spec"]["unschedulable"] = True
    (reason,) = keeps_from(pod(), cordoned, {})
    assert reason.code == "pod-taint" and "uncordon" in reason.remedy


@pytest.mark.parametrize(
    ("toleration", "does"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "a", "value": "b"}, True),
        ({"key": "a", "value": "b", "effect": "NoSchedule"}, True),
        ({"key": "a", "value": "b", "effect": "NoExecute"}, False),
        ({"key": "a"}, False),
        ({"key": "b", "operator": "Exists"}, False),
        ({}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], does: bool) -> None:
    assert tolerates(toleration, {"key": "a", "value": "b", "effect": "NoSchedule"}) is does


def affine(*terms: Any) -> Any:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("In", ["h100", "a100"], True), ("In", ["l4"], False), ("NotIn", ["l4"], True), ("NotIn", ["h100"], False),
        ("Exists", [], True), ("DoesNotExist", [], False), ("Gt", ["1"], False), ("Strange", ["1"], False),
    ],
)  # fmt: skip
def test_required_affinity(operator: str, values: list[str], fits: bool) -> None:
    term = {"matchExpressions": [{"key": "accelerator", "operator": operator, "values": values}]}
    reasons = keeps_from(pod(**affine(term)), node(accelerator="h100"), {})
    assert [one.code for one in reasons] == ([] if fits else ["pod-label"])
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
    several = keeps_from(pod(**affine(term, named)), node(accelerator="h100"), {})
    assert several == [], "one term of several is enough"


def test_numbers_in_affinity() -> None:
    def term(operator: str, value: str) -> Any:
        return affine({"matchExpressions": [{"key": "gpu-count", "operator": operator, "values": [value]}]})

    eight = node(**{"gpu-count": "8"})
    assert keeps_from(pod(**term("Gt", "4")), eight, {}) == []
    assert keeps_from(pod(**term("Lt", "4")), eight, {}) != []
    assert keeps_from(pod(**term("Gt", "many")), eight, {}) != []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            'RuntimeHandler "nvidia" not supported: no runtime for "nvidia" is configured',
            "pod-runtime-handler",
        ),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0", "pod-cdi"),
        ("failed to inject CDI devices: unresolvable CDI devices management.nvidia.com/gpu=all", "pod-cdi"),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown", "pod-toolkit"),
        ('exec: "nvidia-container-runtime": executable file not found in $PATH', "pod-toolkit"),
        ("Failed to initialize NVML: could not load NVML library.", "pod-toolkit"),
        ("libcuda: libnvidia-ml.so.1: cannot open shared object file", "pod-toolkit"),
        ('pod rejected: RuntimeClass "nvidia" not found', "pod-runtime-class"),
        ("Allocate failed due to rpc error: code = Unknown, which is unexpected", "pod-allocate"),
        ("Back-off restarting failed container", None),
    ],
)
def test_words_of_runtimes_and_of_nvidias_toolkit(message: str, code: str | None) -> None:
    row = of_message("pod ml/p", message)
    assert (row and row.code) == code
    assert row is None or row.remedy


REJECTED = (
    "Pod was rejected: Allocate failed due to requested number of devices unavailable, which is unexpected"
)


@pytest.mark.parametrize(
    ("reason", "message", "code"),
    [
        ("UnexpectedAdmissionError", REJECTED, "pod-allocate"),
        ("OutOfnvidia.com/gpu", "Pod was rejected: Node didn't have enough resource", "pod-failed"),
        ("Evicted", "The node was low on resource: memory.", None),
        (None, None, None),
    ],
)
def test_a_pod_that_its_kubelet_refused_has_failed_and_is_said_once_for_its_owner(
    reason: str | None, message: str | None, code: str | None
) -> None:
    failed = [pod(f"f{number}", nodeName="n") for number in range(3)]
    for one in failed:
        one["status"] = {"phase": "Failed", "reason": reason, "message": message}
        one["metadata"]["ownerReferences"] = [{"uid": "owner"}]
    found = [one for _, one in codes(nodes=[node()], pods=[agent("n"), *failed]) if one.startswith("pod-")]
    assert found == ([code] if code else [])
    for one in failed:
        one["metadata"].pop("ownerReferences")
    found = [one for _, one in codes(nodes=[node()], pods=[agent("n"), *failed]) if one.startswith("pod-")]
    assert found == ([code] * 3 if code else [])


def event(message: str, name: str = "web", kind: str = "ReplicaSet") -> Any:
    about = {"kind": kind, "namespace": "ml", "name": name}
    return {"reason": "FailedCreate", "involvedObject": about, "message": message, "type": "Warning"}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('pods "w" is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=2,'
         " used: requests.nvidia.com/gpu=7, limited: requests.nvidia.com/gpu=8", "quota"),
        ("pods is forbidden: failed quota: q: must specify requests.nvidia.com/gpu for: c", "quota-unsaid"),
        ("pods is forbidden: something new", "not-made"),
    ],
)  # fmt: skip
def test_why_a_pod_was_not_made(message: str, code: str) -> None:
    events = [event(message), event(message)]
    found = codes(nodes=[node()], pods=[agent("n")], events=events)
    assert found.count(("bad", code)) == 1
    assert ("bad", code) not in codes(nodes=[node()], events=events, namespace="other")


def test_a_refusal_is_over_once_its_maker_has_made_another() -> None:
    """The server keeps the event for an hour."""
    told = event("pods is forbidden: something new") | {"lastTimestamp": "2026-11-29T08:00:00Z"}
    told["involvedObject"]["uid"] = "rs"
    for created, is_said in ("2026-11-29T07:00:00Z", True), ("2026-11-29T08:01:00Z", False):
        one = pod("web-1", nodeName="n")
        one["metadata"] |= {"ownerReferences": [{"uid": "rs"}], "creationTimestamp": created}
        one["status"] = {"phase": "Running"}
        found = codes(nodes=[node()], pods=[agent("n"), one], events=[told])
        assert (("bad", "not-made") in found) is is_said


def test_what_could_not_be_seen_is_said() -> None:
    assert ("unknown", "unasked") in codes(nodes=[node()], unasked={"events": "403"})
    assert ("bad", "no-pod") in codes(nodes=[node()], namespace="ml", pod="gone")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["key", "name", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.lists(st.text(max_size=90), max_size=3), st.sampled_from(["bad", "warn", "ok", "unknown"]))
def test_any_text_fits_80_columns(texts: list[str], state: str) -> None:
    rows = [Row("c", state, f"pod {text}", text, text) for text in texts]
    assert all(len(part) <= 80 for line in render(rows) for part in line.split("\n"))


@pytest.mark.parametrize(("ready", "is_said"), [(False, True), (True, False)])
def test_what_ended_a_container_is_known_between_two_starts_and_forgotten_when_it_is_well(
    ready: bool, is_said: bool
) -> None:
    ended = {"terminated": {"exitCode": 1, "message": "libnvidia-ml.so.1: cannot open shared object file"}}
    one = pod("plugin", nodeName="n")
    one["status"] = {
        "phase": "Running",
        "containerStatuses": [{"ready": ready, "state": {}, "lastState": ended}],
    }
    assert (("bad", "pod-toolkit") in codes(nodes=[node()], pods=[agent("n"), one])) is is_said


def test_where_none_is_usable_nobody_is_told_to_ask_for_less() -> None:
    """A pod that asks for one GPU cannot; and of pods there is only one in a pod."""
    empty = node()
    empty["status"]["allocatable"][GPU] = "0"
    (reason,) = keeps_from(pod(gpus=1), empty, {})
    assert (reason.text, "device plugin" in reason.remedy) == (f"{GPU}: none of those there is usable", True)
    full = node()
    full["status"]["allocatable"]["pods"] = "1"
    (reason,) = keeps_from(pod(gpus=1), full, {"pods": Fraction(1)})
    assert reason.text == "there is room for 1 pod, and no more" and "less" not in reason.remedy
