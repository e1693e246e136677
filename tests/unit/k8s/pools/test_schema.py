# SPDX-License-Identifier: Apache-2.0
"""The file of pools: what it may say, and what every mistake is answered with."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairsched.config.loader import InvalidConfig
from fairsched.errors import ConfigError
from fairsched.k8s.pools.desired import plugin_config, wanted_objects
from fairsched.k8s.pools.load import from_bytes, load
from fairsched.k8s.pools.schema import MODELS, PoolSharing
from tests.unit.repo.tree import ROOT

EXAMPLE = ROOT / "packaging/kubernetes/pools.example.yaml"


def test_the_example_is_valid_and_says_all_that_can_be_said() -> None:
    pools = load(EXAMPLE)
    kinds = {one.ref.kind for one in wanted_objects(pools)}
    assert kinds == {"ResourceQuota", "LimitRange", "PriorityClass", "ConfigMap"}
    text = EXAMPLE.read_text()
    for model in MODELS.values():
        for name, field in model.model_fields.items():
            assert f"{field.alias or name}:" in text, f"{name} is not in the example"


@pytest.mark.parametrize(
    ("text", "line", "key", "said", "remedy"),
    [
        ("pools:\n  a:\n    node: {}", 2, "pools.a.nodes", "field required", ""),
        ("pools:\n  a:\n    nodes: {names: x}\n    tainst: []", 4, "pools.a.tainst", "unknown key", "taints"),
        ("pools:\n  a:\n    nodes: {nmes: x}", 3, "pools.a.nodes.nmes", "unknown key", "names"),
        ("pools:\n  a:\n    nodes: {}", 3, "pools.a.nodes", "names no node", "accelerator"),
        ("pools:\n  A_b:\n    nodes: {names: x}", 2, "pools.A_b", "no name in Kubernetes", ""),
        ("pools:\n  a:\n    nodes: {names: x}\n    sharing: four", 4, "pools.a.sharing", "'four'", "known: none"),
        ("pools:\n  a:\n    nodes: {names: x}\n    labels: {mig: x}", 4, "pools.a.labels.mig", "itself", "key of the"),
        (
            "pools:\n  a:\n    nodes: {names: x}\n    taints:\n      - {key: a, effect: NoSchedul}",
            5, "pools.a.taints[0].effect", "must be 'NoSchedule'", "",
        ),
        (
            "pools:\n  a:\n    nodes: {names: x}\n    taints:\n      - {key: node.kubernetes.io/x, effect: NoExecute}",
            5, "pools.a.taints[0].key", "Kubernetes' own", "",
        ),
        ("namespaces:\n  ml:\n    quota: {nvidia.com/gpu: 8}", 3, "namespaces.ml.quota.nvidia.com/gpu",
         "write requests.nvidia.com/gpu", ""),
        ("namespaces:\n  ml:\n    quota: {limits.nvidia.com/gpu: 8}", 3, "namespaces.ml.quota.limits.nvidia.com/gpu",
         "write requests.nvidia.com/gpu", ""),
        ("namespaces:\n  ml:\n    quota: {memory: 8 GB}", 3, "namespaces.ml.quota.memory", "no quantity", ""),
        ("namespaces:\n  ml:\n    quota: {pods: true}", 3, "namespaces.ml.quota.pods", "no quantity", ""),
        ("priority_classes:\n  system-x: {value: 1}", 2, "priority_classes.system-x", "Kubernetes' own", ""),
        ("priority_classes:\n  x: {value: 2000000000}", 2, "priority_classes.x.value", "1e+09 or less", "lower"),
        ("priority_classes:\n  x: {value: 1, default: true}\n  y: {value: 2, default: true}", 3,
         "priority_classes.y.default", "x is the default", ""),
        ("sharing:\n  configs:\n    a: {replicas: 1}", 3, "sharing.configs.a.replicas", "2 or more", "raise"),
        ("sharing:\n  configs:\n    a b: {replicas: 2}", 3, "sharing.configs.a b", "no label", ""),
        ("label_prefix: a/b", 1, "label_prefix", "no domain", "example.com"),
    ],
)  # fmt: skip
def test_a_mistake_names_line_key_and_remedy(text: str, line: int, key: str, said: str, remedy: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        from_bytes(text.encode(), "p.yaml")
    problem = next(one for one in caught.value.problems if one.key.startswith(key) or said in one.message)
    assert (problem.line, said in problem.message, remedy in problem.remedy) == (line, True, True), problem
    assert problem.remedy


@pytest.mark.parametrize(
    "text", ["", "[]", "pools: [", "a: 1\na: 2", "pools: &a {}\nsharing: *a", "\xff", "x: !!python/x"]
)
def test_what_is_no_file_of_pools_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        from_bytes(text.encode("latin-1"), "p.yaml")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none")


@given(st.binary(max_size=200))
def test_no_bytes_make_another_error(raw: bytes) -> None:
    with contextlib.suppress(ConfigError):
        from_bytes(raw, "p.yaml")


def test_the_device_plugins_file_is_as_the_plugin_reads_it() -> None:
    """version, sharing.timeSlicing.resources[].name and replicas: api/config/v1 of NVIDIA/k8s-device-plugin."""
    document = yaml.safe_load(plugin_config(PoolSharing(replicas=4, mig_strategy="mixed", rename=True)))
    assert document == {
        "version": "v1",
        "flags": {"migStrategy": "mixed"},
        "sharing": {
            "timeSlicing": {
                "renameByDefault": True,
                "failRequestsGreaterThanOne": True,
                "resources": [{"name": "nvidia.com/gpu", "replicas": 4}],
            }
        },
    }


def test_limits_are_filled_in_as_the_api_server_does() -> None:
    """Which would otherwise differ from the file for ever; tests/k8s/test_pools.py asks a real one."""
    limits = [
        {"default": {"cpu": 2}, "max": {"memory": "2Gi"}, "min": {"memory": "1Mi", "storage": 1}},
        {"type": "Pod"},
    ]
    text = yaml.safe_dump({"namespaces": {"ml": {"limits": limits}}})
    (wanted,) = wanted_objects(from_bytes(text.encode(), "f"))
    first, second = wanted.fields["spec", "limits"]
    assert first["default"] == {"cpu": "2", "memory": "2Gi"}
    assert first["defaultRequest"] == {"cpu": "2", "memory": "2Gi", "storage": "1"}
    assert second == {"type": "Pod"}
