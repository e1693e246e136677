# SPDX-License-Identifier: Apache-2.0
"""The manifest grants what the steps ask for, and nothing they never ask for."""

from __future__ import annotations

from typing import Any

import yaml

from fairsched.companion.escalate.model import Kind
from fairsched.k8s.client import KubeClient
from tests.unit.companion.escalate.api_server import ApiServer, pod
from tests.unit.companion.escalate.test_evict import SUFFERER, take
from tests.unit.companion.escalate.test_mig import Manager, by_label
from tests.unit.repo.tree import ROOT

MANIFEST = ROOT / "packaging/kubernetes/escalation-rbac.yaml"
VERBS = {"GET": "get", "PATCH": "patch", "POST": "create"}


def documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}


def granted() -> set[tuple[str, str]]:
    rules = documents()["ClusterRole"]["rules"]
    assert all(rule["apiGroups"] == [""] for rule in rules)
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


def asked(method: str, path: str) -> tuple[str, str] | None:
    """What RBAC calls this request; None = discovery, which everybody may."""
    parts = path.partition("?")[0].strip("/").split("/")[2:]
    if not parts:
        return None
    if parts[0] == "namespaces":
        parts = parts[2:]
    if len(parts) == 1:
        return "list", parts[0]
    return VERBS[method], "/".join([parts[0], *parts[2:]])


def test_the_manifest_grants_exactly_what_is_asked_for(api: ApiServer, client: KubeClient) -> None:
    api.add(SUFFERER, pod("a"), pod("b"))
    take(client, is_dry_run=True)
    done, _, _ = take(client)
    take(client, kind=Kind.ROLLBACK, undo=done.undo)
    done, _ = by_label(client, Manager(api))
    by_label(client, None, kind=Kind.ROLLBACK, undo=done.undo)
    made = {asked(method, path) for method, path, _ in api.calls} - {None}
    assert made == granted()


def test_the_binding_binds_that_role_to_that_account() -> None:
    found = documents()
    account = found["ServiceAccount"]["metadata"]
    (subject,) = found["ClusterRoleBinding"]["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert found["ClusterRoleBinding"]["roleRef"]["name"] == found["ClusterRole"]["metadata"]["name"]
