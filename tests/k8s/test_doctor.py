# SPDX-License-Identifier: Apache-2.0
"""Every row of the troubleshooting table, brought about on the live cluster: `fairsched k8s doctor` finds each.

All of it is set up at once, in a namespace of its own, and what the scheduler, the kubelet, containerd and the
controllers say of it is theirs. The GPU nodes are Node objects that nobody stands behind; the toolkit's words come from
a container that ends with them, as a device plugin does where the driver's library is missing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from fairsched.k8s.doctor.starts import of_message
from tests.k8s.cluster import NODE, Cluster
from tests.k8s.commands import Person
from tests.k8s.places import BIN, IMAGE
from tests.k8s.pods import PATIENCE_S, drop_spaces, make_spaces, pod
from tests.k8s.settings import SOCKET
from tests.support import wait_until

SPACE, FULL, TOLD, STRICT = "doctor", "doctor-full", "doctor-told", "doctor-strict"
H100, T4, BARE = "doctor-h100", "doctor-t4", "doctor-bare"
GPU = "nvidia.com/gpu"
Rows = list[dict[str, Any]]

EXPECTED = {
    "node-plugin": (f"node {BARE}", "no device plugin has registered", "device plugin's pod"),
    "node-devices": (f"node {T4}", "none usable of 4", "Xid"),
    "node-not-ready": (f"node {H100}", "it is not ready", "look at its kubelet"),
    "node-cordoned": (f"node {BARE}", "no pod is sent there", f"kubectl uncordon {BARE}"),
    "agent-none": ("cluster", "no agent of fairsched is there", "helm install fairsched"),
    "agent-absent": (f"node {H100}", "no agent of fairsched runs there", "nodeSelector"),
    "agent-not-ready": (f"node {NODE}", "agent agent is not ready", "describe pod agent"),
    "pod-taint": (f"pod {SPACE}/taint", f"taint {GPU}=present:NoSchedule is not tolerated", "tolerations: [{key"),
    "pod-label": (f"pod {SPACE}/label", "nodeSelector accelerator=b200", "fairsched k8s label"),
    "pod-gpu": (f"pod {SPACE}/many", f"{GPU}: it asks for 9, the node has 8 in all", "no more than one node has"),
    "pod-plugin": (f"pod {SPACE}/taint", f"{GPU} is not offered there", "device plugin"),
    "pod-resource": (f"pod {SPACE}/wide", "cpu: it asks for 10000", "ask for less"),
    "pod-other": (f"pod {SPACE}/lonely", f"it could go to {H100}, ", "the scheduler's words"),
    "pod-scheduler": (f"pod {SPACE}/taint", "the scheduler says: 0/", None),
    "pod-unseen": (f"pod {SPACE}/unseen", "it wants nobody", "does that scheduler run"),
    "pod-gated": (f"pod {SPACE}/gated", "scheduling gates: example.com/queue", "admits it"),
    "quota": (f"job {FULL}/greedy", f"requests.{GPU}=1, requests.{GPU}=0 are used", "describe quota gpus"),
    "quota-unsaid": (f"job {TOLD}/silent", "quota memory wants pods that say limits.memory", "LimitRange"),
    "not-made": (f"job {STRICT}/plain", "violates PodSecurity", "kubectl describe it"),
    "pod-runtime-class": (f"job {SPACE}/classless", "RuntimeClass doctor-none is not there", "kind RuntimeClass"),
    "pod-runtime-handler": (f"pod {SPACE}/handler", "no handler doctor-nvidia", "nvidia-ctk runtime configure"),
    "pod-toolkit": (f"pod {SPACE}/toolkit", "libnvidia-ml.so.1", "nvidia-ctk runtime configure"),
    "pod-image": (f"pod {SPACE}/image", "ErrImageNeverPull", "is the image there"),
    "pod-start": (f"pod {SPACE}/bare", "CreateContainerConfigError", f"kubectl describe pod {SPACE}/bare"),
    "quota-full": (f"quota {FULL}/none", "0 of 0 used", "refused"),
}  # fmt: skip


def made(name: str, *, gpus: str | None = None, **spec: Any) -> dict[str, Any]:
    """A pod of the namespace, by default one that tolerates everything and goes to the node with a kubelet."""
    document = pod(name, namespace=SPACE)
    if gpus is not None:
        document["spec"]["containers"][0]["resources"] = {"limits": {GPU: gpus}}
    document["spec"].update(spec)
    return document


def job(name: str, space: str, **spec: Any) -> dict[str, Any]:
    template = {"spec": {**pod(name)["spec"], "restartPolicy": "Never", **spec}}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": space},
        "spec": {"template": template},
    }  # fmt: skip


def scene() -> list[dict[str, Any]]:
    here: dict[str, Any] = {"nodeName": NODE}
    toolkit, image, agent = (made(name, **here) for name in ("toolkit", "image", "agent"))
    toolkit["spec"]["containers"][0]["command"] = [
        "/bin/sh", "-c", "echo 'libnvidia-ml.so.1: cannot open shared object file' >/dev/termination-log; exit 1",
    ]  # fmt: skip
    image["spec"]["containers"][0]["image"] = "fairsched.test/absent:1"
    agent["metadata"]["labels"] = {"app.kubernetes.io/name": "fairsched"}
    agent["spec"]["hostPID"] = True
    agent["spec"]["containers"][0]["readinessProbe"] = {"exec": {"command": ["/bin/sh", "-c", "exit 1"]}}
    wide, bare = made("wide"), made("bare", **here)
    wide["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10000"}}
    bare["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "doctor-none"}}]
    nobody = {"matchLabels": {"app": "nobody"}}
    together = {"topologyKey": "kubernetes.io/hostname", "labelSelector": nobody}
    greedy = job("greedy", FULL)
    greedy["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: "2"}}
    return [
        {
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "doctor"},
            "handler": "doctor-nvidia",
        },
        made("taint", gpus="1", tolerations=[]),
        made("label", gpus="1", nodeSelector={"accelerator": "b200"}),
        made("many", gpus="9"),
        made("unseen", schedulerName="nobody"),
        made("gated", schedulingGates=[{"name": "example.com/queue"}]),
        made("handler", runtimeClassName="doctor", **here),
        made("lonely", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [together]}}),
        toolkit, image, agent, greedy, wide, bare, job("silent", TOLD), job("plain", STRICT),
        job("classless", SPACE, runtimeClassName="doctor-none"),
    ]  # fmt: skip


def gpu_node(cluster: Cluster, name: str, capacity: int | None, allocatable: int, **spec: Any) -> None:
    cluster.apply(
        {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"accelerator": "x"}},
            "spec": spec,
        }
    )  # fmt: skip
    if capacity is not None:
        room = {"cpu": "8", "memory": "64Gi", "pods": "10"}
        status = {"capacity": {**room, GPU: str(capacity)}, "allocatable": {**room, GPU: str(allocatable)}}
        patch = json.dumps({"status": status})
        cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", patch)


@pytest.fixture(scope="module")
def rows(cluster: Cluster) -> Iterator[Rows]:
    make_spaces(cluster, SPACE, FULL, TOLD, STRICT)
    cluster.kubectl("label", "namespace", STRICT, "pod-security.kubernetes.io/enforce=restricted")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota"}
    cluster.apply(
        {**quota, "metadata": {"name": "gpus", "namespace": FULL}, "spec": {"hard": {f"requests.{GPU}": "1"}}},
        {
            **quota, "metadata": {"name": "none", "namespace": FULL},
            "spec": {"hard": {"requests.nvidia.com/mig-1g.10gb": "0"}},
        },
        {**quota, "metadata": {"name": "memory", "namespace": TOLD}, "spec": {"hard": {"limits.memory": "1Gi"}}},
    )  # fmt: skip
    gpu_node(cluster, H100, 8, 8, taints=[{"key": GPU, "value": "present", "effect": "NoSchedule"}])
    gpu_node(cluster, T4, 4, 0)
    gpu_node(cluster, BARE, None, 0, unschedulable=True)
    cluster.kubectl("label", "node", NODE, "nvidia.com/gpu.present=true", "--overwrite")
    for space in (SPACE, FULL, TOLD, STRICT):
        account = ("serviceaccount", "default", "-n", space)
        wait_until(lambda account=account: cluster.has(*account), PATIENCE_S, "an account")
    admin = Person(cluster)
    found: Rows = []
    try:
        found += json.loads(admin.run("k8s", "doctor", "--json").stdout)
        cluster.apply(*scene())

        def has_all() -> bool:
            for row in json.loads(admin.run("k8s", "doctor", "--json").stdout):
                if row not in found:  # a container that ends again and again is in another state at each look
                    found.append(row)
            return {row["code"] for row in found} >= set(EXPECTED)

        try:
            wait_until(has_all, PATIENCE_S, "every row is there")
        except AssertionError:
            print(f"missing: {set(EXPECTED) - {row['code'] for row in found}}")
        yield found
    finally:
        for space in (FULL, TOLD):  # others look at all quotas of the cluster
            cluster.kubectl("delete", "quota", "--all", "-n", space)
        drop_spaces(cluster, SPACE, FULL, TOLD, STRICT)
        cluster.kubectl("delete", "node", H100, T4, BARE, "--ignore-not-found")
        cluster.kubectl("delete", "runtimeclass", "doctor", "--ignore-not-found")


@pytest.mark.parametrize("code", EXPECTED)
def test_a_row_of_the_table_is_found_and_says_what_to_do(rows: Rows, code: str) -> None:
    subject, text, remedy = EXPECTED[code]
    mine = [row for row in rows if row["code"] == code]
    fitting = [row for row in mine if row["subject"] == subject and text in row["text"]]
    assert fitting, mine
    assert remedy is None or remedy in str(fitting[0]["remedy"]), fitting


def test_containerds_own_words_for_a_cdi_device_that_is_not_there(cluster: Cluster) -> None:
    """No pod gets one here without a device plugin; containerd is asked for it as the kubelet would ask."""
    ctr = [str(BIN / "ctr"), "-a", SOCKET, "-n", "k8s.io", "run", "--rm", "--device", "nvidia.com/gpu=0"]
    command = cluster.inside(*ctr, IMAGE, "doctor-cdi", "true")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    row = of_message("pod ml/p", done.stderr)
    assert row is not None and row.code == "pod-cdi", done.stderr
    assert "nvidia-ctk cdi generate" in row.remedy


def test_the_answer_fits_80_columns_and_fails(cluster: Cluster, rows: Rows) -> None:
    assert rows
    told = Person(cluster).say("doctor", status=1)
    assert f"pod {SPACE}/taint" in told and "things wrong" in told
    one = Person(cluster).say("doctor", "-n", SPACE, "taint", status=1)
    assert f"{SPACE}/many" not in one and f"node {BARE}" not in one
    assert "there is no such pod" in Person(cluster).say("doctor", "-n", SPACE, "nobody", status=1)


def test_a_user_who_may_see_less_is_told_what_was_not_seen(cluster: Cluster, rows: Rows) -> None:
    assert rows
    user = Person(cluster, cluster.authority.kubeconfig("doctor-user", "doctor-user"))
    assert "403 Forbidden" in user.say("doctor", status=1)
    cluster.kubectl("create", "clusterrole", "doctor-nodes", "--verb=list", "--resource=nodes")
    cluster.kubectl(
        "create", "clusterrolebinding", "doctor-nodes", "--clusterrole=doctor-nodes", "--user=doctor-user"
    )
    cluster.kubectl(
        "create", "rolebinding", "doctor", "-n", SPACE, "--clusterrole=view", "--user=doctor-user"
    )
    try:
        told = " ".join(user.say("doctor", "-n", SPACE, status=1).split())
        assert "pods of other namespaces could not be seen" in told and f"pod {SPACE}/taint" in told
    finally:
        cluster.kubectl("delete", "clusterrolebinding", "doctor-nodes")
        cluster.kubectl("delete", "clusterrole", "doctor-nodes")
