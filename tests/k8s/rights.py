# SPDX-License-Identifier: Apache-2.0
"""What an account may do and what it has asked for, both as the API server has them: they are to be the same.

What it may: the server's own answer (SelfSubjectRulesReview), less what everybody may who is known to it. What it has
asked for: the server's record (settings.py says of whom there is one). Discovery is everybody's.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from tests.k8s.cluster import Cluster

NOBODY = "nobody-in-particular"
Right = tuple[str, str]
"""A verb, and GROUP/RESOURCE[/SUBRESOURCE]."""
_PATH = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
_REVIEW = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}


def account(namespace: str, name: str) -> str:
    """The user that a service account is."""
    return f"system:serviceaccount:{namespace}:{name}"


def check(
    cluster: Cluster, user: str, *namespaces: str, since: int = 0, tried: Collection[Right] = ()
) -> None:
    """It has used all that it may in these namespaces, and nothing was refused but what is ``tried``.

    ``since``: lines of the record.
    """
    mine = [
        one for one in cluster.audited()[since:] if one["user"]["username"] == user and "objectRef" in one
    ]
    denied = [one for one in mine if one["responseStatus"]["code"] == 403]
    refused = [one for one in denied if right_of(one) not in tried]
    assert refused == [], json.dumps(refused[:1])
    asked = {right_of(one) for one in mine if one["responseStatus"]["code"] < 300}
    granted = may(cluster, user, namespaces) - may(cluster, NOBODY, namespaces)
    assert asked == granted, f"{user}: unused {granted - asked}, of everybody {asked - granted}"


def right_of(record: dict[str, Any]) -> Right:
    about = record["objectRef"]
    parts = (about["resource"], about.get("subresource"))
    return record["verb"], f"{about.get('apiGroup', '')}/{'/'.join(filter(None, parts))}"


def may(cluster: Cluster, user: str, namespaces: Collection[str]) -> set[Right]:
    found: set[Right] = set()
    for namespace in namespaces:
        review = json.dumps({**_REVIEW, "spec": {"namespace": namespace}})
        answer = cluster.kubectl("create", "--raw", _PATH, "-f", "-", f"--as={user}", stdin=review)
        for rule in json.loads(answer)["status"]["resourceRules"]:
            found |= {
                (verb, f"{group}/{resource}")
                for verb in rule["verbs"]
                for group in rule.get("apiGroups") or [""]
                for resource in rule.get("resources") or ()
            }
    return found
