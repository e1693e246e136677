# SPDX-License-Identifier: Apache-2.0
"""Reads why pods are not made, or do not start on their node (pure): quotas, RuntimeClasses, toolkit and CDI, images.

The words are those of Kubernetes 1.34, containerd 2 and NVIDIA's container toolkit. What is not recognised is shown as
it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from fairsched.k8s.doctor.cluster import Cluster, Row, amount, gpus_of
from fairsched.k8s.doctor.pods import chosen
from fairsched.k8s.objects import Object, is_over, name_of, space_of, text_of

_QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: (.*?), used: (.*?), limited: (.*)")
_MUST_SAY = re.compile(r"failed quota: ([^:]+): must specify (.*)")
_RUNTIME_CLASS = re.compile(r'RuntimeClass[^"]*"([^"]+)" not found')
_HANDLER = re.compile(r'no runtime for "([^"]+)" is configured|unknown runtime handler "?([^" ]+)')
_CDI = re.compile(
    r"(?i)unresolvable CDI devices ?\[?([^\]\n]*)|CDI device injection failed[^\n]*|failed to inject CDI"
)
_TOOLKIT = re.compile(
    r"(?i)nvidia-container-(?:cli|runtime)|libnvidia-ml\.so|failed to (?:load|initialize) NVML|exec:? .*nvidia-ctk"
)
_STUCK = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_REJECTED = ("UnexpectedAdmissionError", "OutOf", "Topology")
"""Reasons of a kubelet for a pod that it was sent and cannot run."""
_MOST_EVENTS = 40
_CDI_REMEDY = "on the node: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; CDI enabled in the runtime"
_TOOLKIT_REMEDY = (
    "on the node: nvidia-ctk runtime configure --runtime=containerd, restart it; is the driver loaded?"
)
_RUNTIME_REMEDY = (
    "make it: kind RuntimeClass with handler nvidia (NVIDIA's toolkit), or take it out of the pod"
)


def rows(cluster: Cluster) -> Iterator[Row]:
    """Of pods on a node that do not start, of pods that were not made, and of quotas that are used up."""
    messages = _messages(cluster)
    for pod in chosen(cluster):
        if not is_over(pod):
            yield from _pod(pod, messages, cluster.runtimes)
    yield from _rejected(cluster)
    yield from _refused(cluster)
    yield from _used_up(cluster)


def _messages(cluster: Cluster) -> Mapping[str, list[str]]:
    """What events say of each pod, by uid, the latest first."""
    found: dict[str, list[str]] = {}
    for event in sorted(cluster.events or (), key=when, reverse=True):
        about = event.get("involvedObject") or {}
        if about.get("kind") == "Pod" and event.get("type") != "Normal":
            found.setdefault(str(about.get("uid")), []).append(str(event.get("message") or ""))
    return found


def when(event: Object) -> str:
    """Its time, for an order."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    created = text_of(event, "creationTimestamp")
    return next((str(one) for one in (*times, created) if one), "")


def _pod(pod: Object, messages: Mapping[str, list[str]], runtimes: Sequence[Object] | None) -> Iterator[Row]:
    status = pod.get("status") or {}
    where = f"pod {space_of(pod)}/{name_of(pod)}"
    is_pending = status.get("phase") == "Pending" and bool((pod.get("spec") or {}).get("nodeName"))
    waits = [
        (str(state.get("reason") or ""), str(state.get("message") or ""))
        for key in ("initContainerStatuses", "containerStatuses")
        for one in status.get(key) or ()
        for state in (((one.get("state") or {}).get("waiting")) or {},)
        if state
    ]
    ended = [
        str(state.get("message") or "")
        for one in status.get("containerStatuses") or ()
        for key in ("state", "lastState")
        for state in (((one.get(key) or {}).get("terminated")) or {},)
        if state and not one.get("ready")
    ]
    told = [message for _, message in waits] + ended
    if is_pending or any(reason not in ("", "ContainerCreating", "PodInitializing") for reason, _ in waits):
        told += messages.get(text_of(pod, "uid"), [])[:_MOST_EVENTS]
        found = next(filter(None, (of_message(where, one) for one in told)), None)
        if found is not None:
            yield found
        else:
            yield from _other(where, waits, told)
    elif found := next(filter(None, (of_message(where, one) for one in ended)), None):
        yield found  # between two starts it waits for nothing, and what ended it is known all the same
    name = (pod.get("spec") or {}).get("runtimeClassName")
    if name and runtimes is not None and name not in {name_of(one) for one in runtimes}:
        text = f"its RuntimeClass {name} is not there (any more)"
        yield Row("pod-runtime-class", "bad", where, text, _RUNTIME_REMEDY)


def _rejected(cluster: Cluster) -> Iterator[Row]:
    """Pods with GPUs that their kubelet did not take: they have failed for good. One of each owner's."""
    seen: set[str] = set()
    for pod in chosen(cluster):
        status = pod.get("status") or {}
        reason = str(status.get("reason") or "")
        if status.get("phase") != "Failed" or not reason.startswith(_REJECTED) or not gpus_of(pod):
            continue
        owners = (pod.get("metadata") or {}).get("ownerReferences") or ()
        owner = str(owners[0].get("uid")) if owners else text_of(pod, "uid")
        if owner in seen:
            continue
        seen.add(owner)
        where, message = f"pod {space_of(pod)}/{name_of(pod)}", f"{reason}: {status.get('message') or ''}"
        yield of_message(where, message) or Row(
            "pod-failed",
            "bad",
            where,
            f"its kubelet refused it: {_short(message)}",
            "make it anew once that is mended",
        )


def _other(where: str, waits: Sequence[tuple[str, str]], told: Sequence[str]) -> Iterator[Row]:
    reason = next((one for one, _ in waits if one not in ("", "ContainerCreating", "PodInitializing")), "")
    message = next(filter(None, told), "")
    if reason in _STUCK:
        yield Row(
            "pod-image",
            "bad",
            where,
            f"{reason}: {message}"[:300],
            "is the image there, and may the node pull it?",
        )
    elif reason or message:
        yield Row(
            "pod-start",
            "bad",
            where,
            f"{reason or 'it does not start'}: {message}"[:300],
            f"kubectl describe {where}",
        )


def of_message(where: str, message: str) -> Row | None:
    """What is known of a message; None: nothing."""
    if handler := _HANDLER.search(message):
        name = handler.group(1) or handler.group(2)
        text = f"its node's container runtime has no handler {name}"
        return Row("pod-runtime-handler", "bad", where, text, _TOOLKIT_REMEDY)
    if _CDI.search(message):
        return Row("pod-cdi", "bad", where, f"CDI: {_short(message)}", _CDI_REMEDY)
    if _TOOLKIT.search(message):
        return Row("pod-toolkit", "bad", where, f"NVIDIA's toolkit: {_short(message)}", _TOOLKIT_REMEDY)
    if name_ := _RUNTIME_CLASS.search(message):
        text = f"RuntimeClass {name_.group(1)} is not there"
        return Row("pod-runtime-class", "bad", where, text, _RUNTIME_REMEDY)
    if "Allocate failed" in message or "UnexpectedAdmissionError" in message:
        return Row("pod-allocate", "bad", where, f"the device plugin refused: {_short(message)}",
                   "look at the device plugin's log on that node; then make the pod anew")  # fmt: skip
    return None


def _short(message: str) -> str:
    """The end of a chain of errors says most."""
    return message if len(message) <= 200 else f"... {message[-196:]}"


def _refused(cluster: Cluster) -> Iterator[Row]:
    """Events of those who make pods: a quota or the admission has refused one, and they have made none since."""
    seen: set[tuple[str, str]] = set()
    made = _made(cluster)
    for event in sorted(cluster.events or (), key=when, reverse=True):
        if event.get("reason") != "FailedCreate":
            continue
        about, message = event.get("involvedObject") or {}, str(event.get("message") or "")
        space = str(about.get("namespace") or "")
        if cluster.namespace not in (None, space) or cluster.pod is not None:
            continue
        if made.get(str(about.get("uid")), "") > when(event):
            continue
        where = f"{str(about.get('kind') or 'object').lower()} {space}/{about.get('name')}"
        row = _refusal(where, space, message)
        if (where, row.code) not in seen:
            seen.add((where, row.code))
            yield row


def _made(cluster: Cluster) -> Mapping[str, str]:
    """When each that makes pods made the last one that is there, by its uid."""
    found: dict[str, str] = {}
    for pod in cluster.pods:
        for owner in (pod.get("metadata") or {}).get("ownerReferences") or ():
            uid = str(owner.get("uid"))
            found[uid] = max(found.get(uid, ""), text_of(pod, "creationTimestamp"))
    return found


def _refusal(where: str, space: str, message: str) -> Row:
    if found := _QUOTA.search(message):
        name, asked, used, limited = found.groups()
        text = f"no pod is made: quota {name} has {limited}, {used} are used, {asked} more are asked for"
        return Row(
            "quota",
            "bad",
            where,
            text,
            f"end others in {space}, or raise it: kubectl -n {space} describe quota {name}",
        )
    if found := _MUST_SAY.search(message):
        text = f"no pod is made: quota {found.group(1)} wants pods that say {found.group(2)}"
        return Row(
            "quota-unsaid",
            "bad",
            where,
            text,
            "say it in the pod, or give the namespace defaults (LimitRange)",
        )
    if found := _RUNTIME_CLASS.search(message):
        return Row("pod-runtime-class", "bad", where, f"no pod is made: RuntimeClass {found.group(1)} is not there",
                   _RUNTIME_REMEDY)  # fmt: skip
    return Row("not-made", "bad", where, f"no pod is made: {message}"[:300], "kubectl describe it")


def _used_up(cluster: Cluster) -> Iterator[Row]:
    """Quotas of GPUs with nothing left, whether somebody was refused yet or not."""
    for quota in cluster.quotas or ():
        if cluster.namespace not in (None, space_of(quota)) or cluster.pod is not None:
            continue
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for name, limit in sorted(hard.items()):
            is_gpu = name.startswith("requests.nvidia.com/") or name == "requests.fairsched.io/gpu-share"
            if is_gpu and amount(used.get(name, 0)) >= amount(limit):
                where = f"quota {space_of(quota)}/{name_of(quota)}"
                yield Row("quota-full", "warn", where, f"{name}: {used.get(name, 0)} of {limit} used: nothing is left",
                          "the next pod that asks for one is refused")  # fmt: skip
