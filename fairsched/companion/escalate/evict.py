# SPDX-License-Identifier: Apache-2.0
"""The step ``evict``: move one pod away from this node through the Eviction API.

Cordon the node first, so that the pod is not put back here; then ask for the eviction of one candidate after the other
(pods.py) until one is granted. A PodDisruptionBudget that forbids one means the next; when all are forbidden the node
is uncordoned again. The API server waits for nobody: whether the pod has gone is looked at for a while and said.

What we change on the node carries our mark, an annotation; only a cordon with that mark is taken back by us. An
eviction itself cannot be taken back: the pod lives elsewhere.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.companion.escalate.model import Order
from fairsched.companion.escalate.pods import Candidate, Choice, EvictionRules, SuffererUnknown, choose
from fairsched.companion.escalate.steps import CheckOrder, NotNow, Plan, StepFailed
from fairsched.errors import FairschedError
from fairsched.k8s.client import KubeClient, Refused, Unreachable
from fairsched.protocol.status import StatusReport

MARK = "fairsched.io/escalation"
"""Annotation of the node: the order that cordoned or labelled it."""
_CONFLICTS = 5
_PASSING_TRIES = 3
_LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True)
class EvictSettings:
    """The section escalation.evict."""

    node: str
    rules: EvictionRules = field(default_factory=EvictionRules)
    is_cordoning: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    """Put on the node; on rollback it gets those that it had before."""
    grace_s: int | None = None
    """Between SIGTERM and SIGKILL of the pod; None = as the pod says."""
    wait_s: float = 60.0
    """How long we look whether it has gone."""
    max_tries: int = 10
    """Candidates asked for in one go."""


class EvictStep:
    """`connect` makes the client: credentials are looked for when the step is taken."""

    name = "evict"

    def __init__(
        self,
        connect: Callable[[], KubeClient],
        settings: EvictSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._sleep = sleep
        self._clock = clock
        self.timeout_s = settings.wait_s + 20.0 * (settings.max_tries * _PASSING_TRIES + 4)

    def prepare(self, order: Order, report: StatusReport | None) -> Plan:
        client = self._connect()
        node = self._asked(lambda: client.node(self._settings.node))
        pods = self._asked(lambda: client.pods_on(self._settings.node))
        try:
            choice = choose(pods, report, order.tenant, order.gpu, self._settings.rules)
        except SuffererUnknown as error:
            raise NotNow(str(error)) from None
        if not choice.candidates:
            raise NotNow(f"no pod on {self._settings.node} may be evicted{_passed(choice)}")
        others = len(choice.candidates) - 1
        more = f" or one of {others} more" if others else ""
        version = self._asked(client.eviction_version)
        first = "cordon the node and " if self._will_cordon(node) else ""
        detail = f"{first}evict {choice.candidates[0]}{more} from {self._settings.node} by {version}"
        if order.is_dry_run:
            detail += f"; {self._rehearse(client, choice.candidates)}"
        # Marked by an earlier order of ours: that one takes the mark away again, and all that came with it.
        metadata = node.get("metadata") or {}
        is_marked = MARK in (metadata.get("annotations") or {})
        labels = {} if is_marked else dict(self._settings.labels)
        undo = {
            "node": self._settings.node,
            "mark": f"{order.id}@{order.at_s:.0f}",
            "is_cordoned": self._will_cordon(node) and not is_marked,
            "labels": labels,
            "labels_before": {name: (metadata.get("labels") or {}).get(name) for name in labels},
        }
        return Plan(detail, undo, choice)

    def apply(self, order: Order, plan: Plan, check_order: CheckOrder) -> str:
        client, done = self._connect(), []
        try:
            if plan.undo["is_cordoned"] or plan.undo["labels"]:
                check_order()
                self._asked(lambda: self._mark(client, plan.undo))
                done.append("cordoned" if plan.undo["is_cordoned"] else "labelled")
            gone, said = self._evict_one(client, plan.data.candidates, check_order)
        except StepFailed as error:
            error.is_changed = not self._put_back(client, plan.undo, check_order)
            raise
        if gone is None:
            if not self._put_back(client, plan.undo, check_order):
                raise StepFailed(
                    f"no eviction was granted ({said}), and the node stays marked", is_changed=True
                )
            raise StepFailed(f"no eviction was granted: {said}")
        done.append(f"evicted {gone}")
        done.append(
            "it has gone"
            if self._has_gone(client, gone)
            else f"it still ends after {self._settings.wait_s:g} s"
        )
        return f"{self._settings.node}: {', '.join(done)}" + (f" ({said})" if said else "")

    def rollback(self, order: Order, report: StatusReport | None, check_order: CheckOrder) -> str:
        undo = order.undo or {}
        if not undo.get("is_cordoned") and not undo.get("labels"):
            return "nothing to do: the node was not changed, and an eviction cannot be taken back"
        client = self._connect()
        return str(self._asked(lambda: self._unmark(client, undo, check_order)))

    def _will_cordon(self, node: Mapping[str, Any]) -> bool:
        """A node that somebody else has cordoned stays theirs."""
        return self._settings.is_cordoning and not (node.get("spec") or {}).get("unschedulable")

    def _rehearse(self, client: KubeClient, candidates: tuple[Candidate, ...]) -> str:
        """Ask the server which eviction it would grant; it changes nothing."""
        granted, said = self._evict_one(client, candidates, lambda: None, is_dry_run=True)
        if granted is None:
            return f"the server would grant none: {said}"
        return f"the server would grant {granted}" + (f" ({said})" if said else "")

    def _evict_one(
        self,
        client: KubeClient,
        candidates: tuple[Candidate, ...],
        check_order: CheckOrder,
        *,
        is_dry_run: bool = False,
    ) -> tuple[Candidate | None, str]:
        """The candidate that was evicted, and what came of those before it."""
        refusals: list[str] = []
        for candidate in candidates[: self._settings.max_tries]:
            refusal = self._evict(client, candidate, check_order, is_dry_run)
            if refusal is None:
                return candidate, "; ".join(refusals)
            refusals.append(f"{candidate}: {refusal}")
        return None, "; ".join(refusals)

    def _evict(
        self, client: KubeClient, candidate: Candidate, check_order: CheckOrder, is_dry_run: bool
    ) -> str | None:
        """None when it was granted, else why the next one is to be tried. Raises StepFailed when nobody is."""
        for attempt in range(_PASSING_TRIES):
            check_order()
            try:
                client.evict(
                    candidate.namespace,
                    candidate.name,
                    candidate.uid,
                    self._settings.grace_s,
                    is_dry_run=is_dry_run,
                )
                return None
            except Unreachable as error:
                raise StepFailed(str(error)) from error
            except Refused as error:
                if error.is_disruption_budget:
                    return f"its disruption budget forbids it now ({error.message})"
                if error.is_absent:
                    return "it has gone by itself"
                if error.is_conflict:
                    return "another pod has its name by now"
                if error.status == 500 and "PodDisruptionBudget" in error.message:
                    return f"its disruption budgets contradict each other ({error.message})"
                if not error.is_passing:
                    raise StepFailed(str(error), remedy=error.remedy) from error
                if attempt == _PASSING_TRIES - 1:
                    raise StepFailed(f"{error} ({_PASSING_TRIES} times)") from error
                self._sleep(min(error.retry_after_s or 2.0**attempt, _LONGEST_PAUSE_S))
        raise AssertionError("the last attempt returns or raises")

    def _has_gone(self, client: KubeClient, candidate: Candidate) -> bool:
        end_s = self._clock() + self._settings.wait_s
        while True:
            try:
                pod = client.pod(candidate.namespace, candidate.name)
                if (pod.get("metadata") or {}).get("uid") != candidate.uid:
                    return True
            except Refused as error:
                if error.is_absent:
                    return True
            except Unreachable:
                pass  # the eviction was granted: how it goes on is only told, not needed
            if self._clock() >= end_s:
                return False
            self._sleep(1.0)

    def _mark(self, client: KubeClient, undo: Mapping[str, Any]) -> None:
        metadata: dict[str, Any] = {"annotations": {MARK: undo["mark"]}}
        if undo["labels"]:
            metadata["labels"] = undo["labels"]
        patch: dict[str, Any] = {"metadata": metadata}
        if undo["is_cordoned"]:
            patch["spec"] = {"unschedulable": True}
        client.patch_node(undo["node"], patch)

    def _unmark(self, client: KubeClient, undo: Mapping[str, Any], check_order: CheckOrder) -> str:
        """Take the mark and what came with it away, unless the mark is not (any more) ours."""
        for _ in range(_CONFLICTS):
            try:
                node = client.node(undo["node"])
            except Refused as error:
                if error.is_absent:
                    return f"nothing to do: node {undo['node']} is gone"
                raise
            metadata = node.get("metadata") or {}
            if (metadata.get("annotations") or {}).get(MARK) != undo["mark"]:
                return f"left alone: {undo['node']} does not carry our mark any more"
            patch: dict[str, Any] = {
                # The server refuses the patch if the node has changed since we looked.
                "metadata": {"resourceVersion": metadata.get("resourceVersion"), "annotations": {MARK: None}}
            }
            if undo.get("labels"):
                patch["metadata"]["labels"] = _labels_back(metadata.get("labels") or {}, undo)
            if undo.get("is_cordoned"):
                patch["spec"] = {"unschedulable": None}
            check_order()
            try:
                client.patch_node(undo["node"], patch)
            except Refused as error:
                if not error.is_conflict:
                    raise
                continue
            return f"{undo['node']} is {'uncordoned' if undo.get('is_cordoned') else 'unlabelled'}"
        raise StepFailed(f"{undo['node']} changes faster than it can be patched", is_changed=True)

    def _put_back(self, client: KubeClient, undo: Mapping[str, Any], check_order: CheckOrder) -> bool:
        """After a failure; whether the node is as it was."""
        if not undo["is_cordoned"] and not undo["labels"]:
            return True
        with contextlib.suppress(FairschedError):
            self._unmark(client, undo, check_order)
            return True
        return False

    def _asked(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Refused, Unreachable) as error:
            raise StepFailed(str(error), remedy=error.remedy) from error


def _labels_back(now: Mapping[str, Any], undo: Mapping[str, Any]) -> dict[str, Any]:
    """Each label as it was, None = it was not there; one that somebody has changed meanwhile stays his."""
    before = undo.get("labels_before") or {}
    return {name: before.get(name) for name, ours in undo["labels"].items() if now.get(name) == ours}


def _passed(choice: Choice) -> str:
    reasons = ", ".join(f"{count} {why}" for why, count in sorted(choice.passed.items()))
    return f": {reasons}" if reasons else ": none uses a GPU"
