# SPDX-License-Identifier: Apache-2.0
"""The few calls of the Kubernetes API, over real HTTPS, with a server that answers and one that does not."""

from __future__ import annotations

import base64
import json
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from fairsched.errors import ConfigError
from fairsched.k8s import client as kube
from fairsched.k8s.client import KubeClient, Refused, Times, Unreachable
from fairsched.k8s.kubeconfig import access, from_file
from tests.unit.companion.escalate.api_server import (
    NODE,
    ApiServer,
    babble,
    drip,
    drip_headers,
    hang_up,
    pod,
    refuse,
    say_nothing,
)


def test_a_node_is_read_and_patched(api: ApiServer, client: KubeClient) -> None:
    client.patch_node(NODE, {"spec": {"unschedulable": True}, "metadata": {"labels": {"a": "b"}}})
    assert client.node(NODE)["spec"] == {"unschedulable": True}
    version = client.node(NODE)["metadata"]["resourceVersion"]
    client.patch_node(NODE, {"metadata": {"resourceVersion": version}, "spec": {"unschedulable": None}})
    with pytest.raises(Refused) as caught:
        client.patch_node(NODE, {"metadata": {"resourceVersion": version}, "spec": {"unschedulable": True}})
    assert caught.value.status == 409
    assert api.nodes[NODE]["spec"] == {}


def test_pods_come_in_pages(api: ApiServer, client: KubeClient) -> None:
    api.page = 3
    api.add(*(pod(f"web-{n}") for n in range(8)), pod("elsewhere", node="node2"))
    names = [one["metadata"]["name"] for one in client.pods_on(NODE)]
    assert names == [f"web-{n}" for n in range(8)]
    assert len(api.made("GET", "/pods")) == 3


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_eviction_is_of_the_version_the_server_has(tmp_path: Path, version: str) -> None:
    with ApiServer(tmp_path, version) as api:
        api.add(pod("web"))
        client = KubeClient(from_file(api.kubeconfig()))
        client.evict("team", "web", api.pods["web"]["metadata"]["uid"], 5)
        assert api.pods == {}
        (body,) = api.made("POST")
        assert body["apiVersion"] == client.eviction_version() == f"policy/{version}"
        assert body["deleteOptions"]["gracePeriodSeconds"] == 5
        assert len(api.made("GET", "/api/v1")) == 1, "asked once"


def test_a_server_without_evictions_is_said_to_have_none(tmp_path: Path) -> None:
    with ApiServer(tmp_path, None) as api, pytest.raises(Unreachable, match="no eviction"):
        KubeClient(from_file(api.kubeconfig())).eviction_version()


def test_a_dry_run_of_an_eviction_evicts_nobody(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("web"))
    client.evict("team", "web", api.pods["web"]["metadata"]["uid"], None, is_dry_run=True)
    assert "web" in api.pods


def test_another_pod_of_the_same_name_is_not_evicted(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("web"))
    with pytest.raises(Refused) as caught:
        client.evict("team", "web", "the-uid-of-an-earlier-one", None)
    assert caught.value.status == 409 and "web" in api.pods


def test_a_disruption_budget_is_told_from_an_overloaded_server(api: ApiServer, client: KubeClient) -> None:
    api.add(pod("web"))
    uid = api.pods["web"]["metadata"]["uid"]
    api.budgeted.add("web")
    with pytest.raises(Refused) as caught:
        client.evict("team", "web", uid, None)
    assert caught.value.is_disruption_budget and not caught.value.is_passing
    api.fail("POST", "eviction", refuse(429, "TooManyRequests", "too many", headers={"Retry-After": "7"}))
    with pytest.raises(Refused) as caught:
        client.evict("team", "web", uid, None)
    assert caught.value.is_passing and not caught.value.is_disruption_budget
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "token"), (403, "escalation-rbac.yaml"), (404, ""), (422, ""), (500, "")]
)
def test_a_refusal_keeps_the_servers_words(
    api: ApiServer, client: KubeClient, status: int, remedy: str
) -> None:
    api.fail("GET", "nodes", refuse(status, "Reason", "because of the weather"))
    with pytest.raises(
        Refused, match=f"GET /api/v1/nodes/node1: {status} Reason because of the weather"
    ) as caught:
        client.node(NODE)
    assert remedy in caught.value.remedy
    assert caught.value.is_passing == (status >= 500)


@pytest.mark.parametrize("fault", [say_nothing, drip_headers, drip])
def test_a_slow_server_costs_no_more_than_the_call_may_take(api: ApiServer, fault: Any) -> None:
    client = KubeClient(from_file(api.kubeconfig()), Times(2.0, 0.3))
    api.fail("GET", "nodes", fault)
    began_s = time.monotonic()
    with pytest.raises(Unreachable, match="too long"):
        client.node(NODE)
    assert time.monotonic() - began_s < 5, (
        "a third of a second where nothing else runs; the server takes ten or more"
    )


@pytest.mark.parametrize("fault", [babble, hang_up])
def test_nonsense_is_no_answer(api: ApiServer, client: KubeClient, fault: Any) -> None:
    api.fail("GET", "nodes", fault)
    with pytest.raises(Unreachable):
        client.node(NODE)


def test_an_answer_without_end_is_cut_off(
    api: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "MAX_ANSWER_BYTES", 100)
    api.add(pod("web"))
    with pytest.raises(Unreachable, match="longer than 100 bytes"):
        client.pods_on(NODE)


def test_a_list_of_large_objects_is_had_in_small_pages(
    api: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may make pods decides how large they are, and must not keep a node from seeing its other pods."""
    monkeypatch.setattr(kube, "MAX_ANSWER_BYTES", 50_000)
    large = [pod(f"large-{n}") for n in range(3)]
    for one in large:
        one["spec"]["x"] = "x" * 40_000
    api.add(*large, *(pod(f"web-{n}") for n in range(5)))
    assert len(client.pods_on(NODE)) == 8


def test_nobody_listens(api: ApiServer, client: KubeClient) -> None:
    api.__exit__()
    with pytest.raises(Unreachable, match="refused"):
        client.node(NODE)


def test_a_server_with_another_certificate_is_not_told_the_token(api: ApiServer, tmp_path: Path) -> None:
    document = json.loads(api.kubeconfig().read_text())
    (tmp_path / "other").mkdir()
    with ApiServer(tmp_path / "other") as other:
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{other.port}"
        path = tmp_path / "mixed"
        path.write_text(json.dumps(document))
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            KubeClient(from_file(path)).node(NODE)
        assert other.calls == []


def test_the_name_in_the_certificate_may_differ_from_the_host(api: ApiServer) -> None:
    path = api.kubeconfig()
    document = json.loads(path.read_text())
    document["clusters"][0]["cluster"]["tls-server-name"] = "api.lab.test"
    path.write_text(json.dumps(document))
    assert KubeClient(from_file(path)).node(NODE)["metadata"]["name"] == NODE
    document["clusters"][0]["cluster"]["tls-server-name"] = "api.other.test"
    path.write_text(json.dumps(document))
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        KubeClient(from_file(path)).node(NODE)


def test_a_host_of_which_one_address_refuses_is_reached_at_another(api: ApiServer) -> None:
    """localhost is ::1, too, where there is IPv6, and the server listens at 127.0.0.1."""
    path = api.kubeconfig()
    document = json.loads(path.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://localhost:{api.port}"
    document["clusters"][0]["cluster"]["tls-server-name"] = "api.lab.test"
    path.write_text(json.dumps(document))
    assert KubeClient(from_file(path)).node(NODE)["metadata"]["name"] == NODE


def test_a_token_in_a_file_is_read_anew_for_every_call(api: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    client = KubeClient(from_file(api.kubeconfig(tokenFile="token")))
    api.tokens = {"first"}
    client.node(NODE)
    api.tokens = {"second"}
    with pytest.raises(Refused) as caught:
        client.node(NODE)
    assert caught.value.status == 401
    token.write_text("second\n")
    client.node(NODE)


def test_in_a_pod_the_service_account_is_used(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sa").mkdir()
    (tmp_path / "sa/token").write_text("a-token")
    (tmp_path / "sa/ca.crt").write_bytes(api.certificate.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    assert KubeClient(access(None, tmp_path / "sa")).node(NODE)["metadata"]["name"] == NODE


def test_outside_a_pod_and_without_a_kubeconfig_the_remedy_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"escalation\.kubernetes\.kubeconfig") as caught:
        access(None, tmp_path)
    assert "kubeconfig" in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"current-context": "nope"}, "no context called 'nope'"),
        ({"clusters": [{"name": "lab", "cluster": {"server": "http://x"}}]}, "not an https address"),
        ({"users": [{"name": "me", "user": {"exec": {"command": "aws"}}}]}, "plugin"),
        (
            {"users": [{"name": "me", "user": {"client-certificate-data": "%%", "client-key-data": "x"}}]},
            "cannot be used",
        ),
        ({"users": []}, "no user called 'me'"),
        ({"contexts": "none"}, "no context called 'c'"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_where(
    api: ApiServer, change: dict[str, Any], says: str
) -> None:
    path = api.kubeconfig()
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=says) as caught:
        from_file(path)
    assert caught.value.file == str(path)


def test_a_client_certificate_is_shown_to_the_server(api: ApiServer, tmp_path: Path) -> None:
    pair = {
        "client-certificate-data": base64.b64encode(api.certificate.read_bytes()).decode(),
        "client-key": "tls.key",
    }
    found = from_file(api.kubeconfig(token="a-token", **pair))
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert KubeClient(found).node(NODE)["metadata"]["name"] == NODE


@pytest.mark.parametrize("text", ["[]", "{", "", "\0"])
def test_what_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "k").write_text(text)
    with pytest.raises(ConfigError):
        from_file(tmp_path / "k")
    with pytest.raises(ConfigError, match="cannot be read"):
        from_file(tmp_path / "absent")
