# SPDX-License-Identifier: Apache-2.0
"""The chart's controller of teams: what it may, and that it is nobody's agent."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fairsched.cli.k8s.teams import command
from fairsched.k8s.teams.queues import KEY
from tests.unit.k8s.test_chart import documents, helm, of_kind, pod_of, render

ON = ["--set", "teams.enabled=true"]
NAME = "fairsched-teams"
__all__ = ["helm"]


def rules_of(kind: str) -> set[tuple[str, str]]:
    (role,) = [one for one in documents(*ON) if one["kind"] == kind and one["metadata"]["name"] == NAME]
    return {
        (verb, resource) for rule in role["rules"] for verb in rule["verbs"] for resource in rule["resources"]
    }


@pytest.mark.usefixtures("helm")
def test_it_may_what_it_asks_for_and_the_agents_no_more_than_before() -> None:
    """A live test compares it with what the API server was asked (tests/k8s/test_teams.py)."""
    assert rules_of("ClusterRole") == {
        ("list", "clusterqueues"), ("watch", "clusterqueues"), ("list", "localqueues"), ("watch", "localqueues"),
        ("list", "namespaces"), ("watch", "namespaces"), ("patch", "namespaces"),
    }  # fmt: skip
    assert rules_of("Role") == {("get", "leases"), ("update", "leases"), ("create", "leases")}

    def agent(*options: str) -> dict[str, Any]:
        (role,) = [
            one for one in documents(*options)
            if one["kind"] == "ClusterRole" and one["metadata"]["name"] == "fairsched"
        ]  # fmt: skip
        return role

    assert agent(*ON) == agent()


@pytest.mark.usefixtures("helm")
def test_a_policy_binds_its_account_to_its_own_key() -> None:
    policy = of_kind("ValidatingAdmissionPolicy", *ON)["spec"]
    (condition,) = policy["matchConditions"]
    assert condition["expression"].endswith(f'== "system:serviceaccount:fairsched:{NAME}"')
    assert policy["failurePolicy"] == "Fail"
    assert any(f'"{KEY}"' in one["expression"] for one in policy["validations"])
    assert of_kind("ValidatingAdmissionPolicyBinding", *ON)["spec"]["validationActions"] == ["Deny"]


@pytest.mark.usefixtures("helm")
def test_it_is_nobody_and_no_agent_and_its_options_are_those_that_there_are() -> None:
    found = of_kind("Deployment", *ON, "--set", "teams.prometheus=http://p:9090")
    container = pod_of(found)["containers"][0]
    security = container["securityContext"]
    assert security["runAsNonRoot"] is True and security["capabilities"] == {"drop": ["ALL"]}
    labels = found["spec"]["template"]["metadata"]["labels"]
    selector = of_kind("DaemonSet", *ON)["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= labels.items(), "the DaemonSet would count it as an agent"
    known = {name for option in command.params for name in option.opts}
    assert {word.partition("=")[0] for word in container["command"][3:]} <= known
    assert "--prometheus=http://p:9090" in container["command"]


@pytest.mark.usefixtures("helm")
def test_teams_whom_no_agent_would_read_are_refused() -> None:
    with pytest.raises(render.RenderError, match=re.escape("set config.kubernetes.watch_pods")):
        render.template(*ON, "--set", "config.kubernetes.watch_pods=false")


@pytest.mark.usefixtures("helm")
def test_without_them_there_is_nothing_of_it() -> None:
    assert not [one for one in documents() if NAME in one["metadata"]["name"]]
