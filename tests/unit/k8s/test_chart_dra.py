# SPDX-License-Identifier: Apache-2.0
"""The chart's DRA driver: off unless asked for, what it may, and that the agents are told."""

from __future__ import annotations

import re

import pytest

from fairsched.config import from_bytes
from tests.unit.k8s.test_chart import config_of, documents, helm, of_kind, pod_of, render

ON = ["--set", "dra.enabled=true"]

__all__ = ["helm"]


def roles() -> set[tuple[str, str]]:
    (found,) = [
        one
        for one in documents(*ON)
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] == "fairsched-dra"
    ]
    return {
        (verb, resource)
        for rule in found["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


@pytest.mark.usefixtures("helm")
def test_it_is_off_by_default_and_changes_nothing_then() -> None:
    kinds = {one["kind"] for one in documents()}
    assert kinds.isdisjoint({"DeviceClass", "ResourceClaimTemplate", "ValidatingAdmissionPolicy"})
    assert not from_bytes(config_of(), "c").kubernetes.dra.enabled


@pytest.mark.usefixtures("helm")
def test_the_agents_are_told_by_the_one_value_and_are_other_pods() -> None:
    assert from_bytes(config_of(*ON), "c").kubernetes.dra.enabled

    def told(*options: str) -> str:
        metadata = of_kind("DaemonSet", *options)["spec"]["template"]["metadata"]
        return str(metadata["annotations"]["fairsched.io/config"])

    assert told(*ON) != told()


@pytest.mark.usefixtures("helm")
def test_it_may_publish_and_read_claims_and_nothing_else() -> None:
    slices = {(verb, "resourceslices") for verb in ("list", "watch", "create", "update", "delete")}
    assert roles() == {*slices, ("get", "resourceclaims"), ("get", "nodes")}
    off = ["--set", "config.kubernetes.watch_pods=false", *ON]
    assert pod_of(of_kind("DaemonSet", *off))["automountServiceAccountToken"] is True


@pytest.mark.usefixtures("helm")
def test_the_policy_is_about_the_account_of_the_agents() -> None:
    policy = of_kind("ValidatingAdmissionPolicy", *ON, "--set", "serviceAccount.name=gpu")
    (condition,) = policy["spec"]["matchConditions"]
    assert '"system:serviceaccount:fairsched:gpu"' in condition["expression"]
    assert policy["spec"]["failurePolicy"] == "Fail"
    kinds = {one["kind"] for one in documents(*ON, "--set", "dra.admissionPolicy=false")}
    assert "ValidatingAdmissionPolicy" not in kinds and "DeviceClass" in kinds


@pytest.mark.usefixtures("helm")
def test_the_kubelet_and_the_runtime_see_its_files_by_the_same_paths() -> None:
    places = "config.kubernetes.dra.kubelet_dir=/k,config.kubernetes.dra.cdi_dir=/c"
    pod = pod_of(of_kind("DaemonSet", *ON, "--set", places))
    volumes = {one["name"]: one.get("hostPath", {}).get("path") for one in pod["volumes"]}
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    mine = {name: path for name, path in mounts.items() if name.startswith("dra-")}
    assert mine == {name: volumes[name] for name in mine} and len(mine) == 4
    assert {"/k/plugins/gpu.fairsched.io", "/k/plugins_registry", "/c"} <= set(mine.values())


@pytest.mark.usefixtures("helm")
def test_an_older_kubernetes_is_refused_in_words() -> None:
    with pytest.raises(render.RenderError, match=re.escape("dra.enabled needs Kubernetes 1.34")):
        render.template(*ON, "--kube-version", "1.33.0")


@pytest.mark.usefixtures("helm")
def test_examples_are_made_where_they_are_wanted() -> None:
    found = [
        one
        for one in documents(*ON, "--set", "dra.examples.namespace=ml")
        if one["kind"] == "ResourceClaimTemplate"
    ]
    assert {one["metadata"]["name"]: one["metadata"]["namespace"] for one in found} == {
        "gpu-quarter": "ml", "gpu-three-quarters": "ml"
    }  # fmt: skip
