# SPDX-License-Identifier: Apache-2.0
"""Node pools on a live API server: what the unit tests play against a model, against server-side apply itself.

One real node, whose kubelet and controllers write it meanwhile, and Node objects that nobody stands behind.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairsched.k8s.pools.schema import Pools, problems
from tests.k8s import rights
from tests.k8s.cluster import NODE, Cluster, ClusterError
from tests.k8s.commands import Person
from tests.k8s.places import BIN
from tests.k8s.pods import PATIENCE_S, drop_spaces, make_spaces
from tests.k8s.release import API, CHART, need_image
from tests.support import wait_until

FAKE = {"h100-a": ("NVIDIA-H100-80GB-HBM3", 8), "l4-a": ("NVIDIA-L4", 2), "t4-a": ("Tesla-T4", 4)}
SEED, ROUNDS = 19, 6
SPACES = ("pool-ml", "nvidia-device-plugin")


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Person]:
    for name, (product, count) in FAKE.items():
        labels = {
            "nvidia.com/gpu.product": product,
            "nvidia.com/gpu.count": str(count),
            "nvidia.com/mig.capable": "true",
        }
        cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    make_spaces(cluster, *SPACES)
    try:
        yield Person(cluster)
    finally:
        cluster.kubectl("delete", "node", *FAKE, "--ignore-not-found")
        drop_spaces(cluster, *SPACES)
        cluster.kubectl("delete", "priorityclass", "-l", "fairsched.io/pools")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pools.yaml"


def write(path: Path, **keys: Any) -> str:
    assert list(problems(Pools.model_validate(keys))) == []
    path.write_text(yaml.safe_dump(keys))
    return str(path)


def everything(path: Path) -> str:
    """A file that says something of each kind."""
    return write(
        path,
        pools={
            "training": {
                "nodes": {"accelerator": "h100", "min_gpus": 8}, "workload": "training", "mig_config": "all-1g.10gb",
                "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
            },
            "serving": {"nodes": {"accelerator": ["l4", "t4"]}, "workload": "inference", "sharing": "four"},
        },
        namespaces={
            "pool-ml": {
                "quota": {"requests.nvidia.com/gpu": 8, "requests.memory": "1024Mi"},
                "limits": [{"default": {"memory": "1024Mi"}, "max": {"memory": "2Gi"}}],
            }
        },
        priority_classes={"pool-batch": {"value": 1000, "preemption": "Never", "description": "later"}},
        sharing={"configs": {"four": {"replicas": 4}}},
    )  # fmt: skip


def labels(cluster: Cluster, node: str) -> dict[str, str]:
    return dict(cluster.get("node", node)["metadata"]["labels"])


def test_plan_diff_apply_and_back(admin: Person, file: Path, tmp_path: Path) -> None:
    """The whole way of a person, exit statuses and bytes included."""
    cluster, path, before = admin.cluster, everything(file), str(tmp_path / "before.json")
    admin.say("backup", "-o", before)
    told = admin.say("plan", "-f", path)
    assert "+ label accelerator: h100" in told and "+ taint nvidia.com/gpu:NoSchedule: present" in told
    assert "+label" not in admin.say("diff", "-f", path, status=1)
    admin.say("apply", "-f", path)
    assert admin.say("diff", "-f", path) == "", "0: no difference, the server's own way of writing included"
    assert admin.json("plan", "-f", path) == []
    found = labels(cluster, "h100-a")
    assert (found["accelerator"], found["gpu-count"], found["mig"]) == ("h100", "8", "off")
    assert found["nvidia.com/mig.config"] == "all-1g.10gb"
    assert labels(cluster, "t4-a")["nvidia.com/device-plugin.config"] == "four"
    data = cluster.get("configmap", "fairsched-sharing", "-n", "nvidia-device-plugin")["data"]
    assert yaml.safe_load(data["four"])["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 4
    assert cluster.get("priorityclass", "pool-batch")["preemptionPolicy"] == "Never"
    assert "nothing to change" in admin.say("apply", "-f", path)

    admin.say("restore", before)
    assert admin.say("backup") == Path(before).read_text()
    assert "nothing to change" in admin.say("restore", before)


def test_the_quota_and_the_limits_are_in_force(admin: Person, file: Path) -> None:
    cluster = admin.cluster
    admin.say("apply", "-f", everything(file))
    account = ("serviceaccount", "default", "-n", "pool-ml")
    wait_until(lambda: cluster.has(*account), PATIENCE_S, "the namespace has its account")
    with pytest.raises(ClusterError, match="exceeded quota: fairsched-pools"):
        cluster.apply(limited({"nvidia.com/gpu": "9"}))
    with pytest.raises(ClusterError, match="maximum memory usage per Container is 2Gi, but limit is 3Gi"):
        cluster.apply(limited({"memory": "3Gi"}))
    told = cluster.kubectl(
        "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=yaml.safe_dump(limited({}))
    )
    (container,) = json.loads(told)["spec"]["containers"]
    assert container["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}
    admin.say("apply", "-f", write(file))


def limited(limits: dict[str, str]) -> dict[str, Any]:
    """A pod that says so of itself."""
    container = {"name": "a", "image": "none", "resources": {"limits": limits}}
    metadata = {"name": "much", "namespace": "pool-ml"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def test_conflicts_name_the_other_manager_and_are_forced_only_by_a_flag(admin: Person, file: Path) -> None:
    cluster, path = admin.cluster, everything(file)
    cluster.kubectl("label", "node", "l4-a", "workload=theirs", "--field-manager=platform-team")
    cluster.kubectl(
        "taint", "node", "h100-a", "nvidia.com/gpu=theirs:NoSchedule", "--field-manager=platform-team"
    )
    said = admin.say("apply", "-f", path, status=1)
    assert "Node l4-a: label workload: set by platform-team" in said
    assert "Node h100-a: taint nvidia.com/gpu:NoSchedule: set by" in said and "platform-team" in said
    assert labels(cluster, "l4-a")["workload"] == "theirs" and "workload" not in labels(cluster, "h100-a")
    assert labels(cluster, "t4-a")["workload"] == "inference", "the others are as the file says"
    admin.say("diff", "-f", path, status=1)
    admin.say("apply", "-f", path, "--force-conflicts")
    assert labels(cluster, "l4-a")["workload"] == "inference"
    admin.say("diff", "-f", path)
    admin.say("apply", "-f", write(file))
    assert "workload" not in labels(cluster, "l4-a")


def test_what_leaves_the_file_goes_and_what_others_have_stays(admin: Person, file: Path) -> None:
    cluster = admin.cluster
    cluster.kubectl("label", "node", "l4-a", "workload=inference", "team=x", "--overwrite")
    admin.say("apply", "-f", everything(file))
    cluster.kubectl("patch", "resourcequota", "fairsched-pools", "-n", "pool-ml", "--type=merge",
                    "-p", '{"spec":{"hard":{"pods":"9"}}}', "--field-manager=somebody")  # fmt: skip
    told = " ".join(admin.say("apply", "-f", write(file)).split())
    assert "ResourceQuota pool-ml/fairsched-pools: given up" in told and "somebody changed it" in told
    found = labels(cluster, "l4-a")
    assert (found["workload"], found["team"]) == ("inference", "x")
    assert cluster.get("resourcequota", "fairsched-pools", "-n", "pool-ml")["spec"]["hard"] == {"pods": "9"}
    assert not cluster.answers("get", "priorityclass", "pool-batch")
    assert not cluster.answers("get", "configmap", "fairsched-sharing", "-n", "nvidia-device-plugin")
    cluster.kubectl("delete", "resourcequota", "fairsched-pools", "-n", "pool-ml")
    cluster.kubectl("label", "node", "l4-a", "workload-", "team-")


def test_the_labeller_of_the_chart_labels_nodes_and_asks_for_nothing_else(
    admin: Person, tmp_path: Path
) -> None:
    cluster = admin.cluster
    need_image(cluster)
    values = tmp_path / "values.yaml"
    config = {"pools": {"serving": {"nodes": {"accelerator": "l4"}, "workload": "inference"}}}
    env = [{"name": name, "value": value} for name, value in API.items()]
    values.write_text(
        yaml.safe_dump(
            {"pools": {"enabled": True, "config": config}, "image": {"pullPolicy": "Never"}, "extraEnv": env}
        )
    )
    command = cluster.inside(
        str(BIN / "helm"), "template", "fairsched", str(CHART), "-n", "pool-ml", "-f", str(values),
        "--kube-version", "1.34.4", "--show-only", "templates/pools.yaml",
    )  # fmt: skip
    manifests = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cluster.kubectl("apply", "-f", "-", stdin=manifests)
    try:
        cluster.kubectl("create", "job", "label", "-n", "pool-ml", "--from=cronjob/fairsched-pools")
        try:
            wait_until(
                lambda: cluster.get("job", "label", "-n", "pool-ml")["status"].get("succeeded") == 1,
                PATIENCE_S,
                "the labeller has ended well",
            )
        except AssertionError as error:
            told = cluster.kubectl("describe", "pods", "-n", "pool-ml")
            logs = cluster.kubectl("logs", "job/label", "-n", "pool-ml", "--tail=20")
            raise AssertionError(f"{error}\n{logs}\n{told[-2500:]}") from error
        assert "label workload: inference" in cluster.kubectl("logs", "job/label", "-n", "pool-ml")
        assert labels(cluster, "l4-a")["workload"] == "inference"
        rights.check(cluster, rights.account("pool-ml", "fairsched-pools"), "pool-ml", "kube-system")
    finally:
        cluster.kubectl("delete", "job", "label", "-n", "pool-ml", "--ignore-not-found")
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=manifests)


def test_a_namespace_that_is_not_there_is_said(admin: Person, file: Path) -> None:
    path = write(file, namespaces={"nowhere": {"quota": {"pods": 1}}})
    said = admin.say("apply", "-f", path, status=1)
    assert "kubectl create namespace nowhere" in said


def test_a_user_without_rights_is_told_so_and_diff_does_not_call_it_a_difference(
    admin: Person, file: Path
) -> None:
    cluster = admin.cluster
    nobody = Person(cluster, cluster.authority.kubeconfig("pools-nobody", "pools-nobody"))
    said = nobody.say("diff", "-f", everything(file), status=2)
    assert "403 Forbidden" in said and "docs/kubernetes-pools.md" in said


def test_any_files_one_after_the_other_come_to_rest_and_go_back(admin: Person, tmp_path: Path) -> None:
    """Files drawn at random, also forced ones, with the kubelet and the controllers at work; a fixed seed."""
    cluster, draw = admin.cluster, random.Random(SEED)
    before = str(tmp_path / "start.json")
    cluster.kubectl("label", "node", NODE, "team=theirs", "--overwrite")
    cluster.kubectl("taint", "node", "t4-a", "theirs=1:PreferNoSchedule", "--overwrite")
    try:
        admin.say("backup", "-o", before)
        for number in range(ROUNDS):
            path = write(tmp_path / f"{number}.yaml", **drawn(draw))
            admin.say("apply", "-f", path, "--force-conflicts")
            assert admin.json("plan", "-f", path) == [], (
                f"round {number} of seed {SEED}: {Path(path).read_text()}"
            )
        # Fields that were forced may have come and gone: what was theirs is then said, not made again.
        said = admin.say("restore", before)
        left = "left as it is" in said
        assert left or admin.say("backup") == Path(before).read_text()
        assert "left as it is" in admin.say("restore", before) if left else True
    finally:
        admin.say("apply", "-f", write(tmp_path / "none.yaml"))
        cluster.kubectl("label", "node", NODE, "team-")
        cluster.kubectl("taint", "node", "t4-a", "theirs-")


def drawn(draw: random.Random) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return value if draw.random() < 0.6 else None

    def some(**values: Any) -> dict[str, Any]:
        return {key: value for key, value in values.items() if value is not None}

    pools = {}
    for name in draw.sample(["a", "b", "c"], draw.randint(0, 3)):
        keys = draw.sample(["x", "y", "z"], draw.randint(0, 3))
        effects = ["NoSchedule", "PreferNoSchedule"]
        pools[name] = some(
            nodes={"names": draw.choice([NODE, "*-a", "l4-*", "*"])},
            workload=maybe(draw.choice(["v", "w"])),
            labels=maybe({draw.choice(["team", "zone"]): draw.choice(["1", "2"])}),
            taints=[some(key=key, value=maybe(draw.choice("12")), effect=draw.choice(effects)) for key in keys
                    if name != "a" or key != "x"],
            mig_config=maybe(draw.choice(["m", "n"])),
        )  # fmt: skip
    for one in pools.values():
        # The node with the kubelet runs the pods of other tests, which a taint would keep away after a failure.
        if one["nodes"]["names"] in (NODE, "*"):
            one["taints"] = [{**taint, "effect": "PreferNoSchedule"} for taint in one["taints"]]
    return some(
        pools=pools,
        namespaces=maybe(
            {"pool-ml": {"quota": {"pods": draw.randint(1, 9)}, "limits": [{"max": {"memory": "1Gi"}}]}}
        ),
        priority_classes=maybe({"pool-batch": {"value": draw.randint(1, 3)}}),
        sharing=maybe({"configs": {"four": {"replicas": draw.randint(2, 5)}}}),
    )
