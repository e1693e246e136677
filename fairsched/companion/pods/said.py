# SPDX-License-Identifier: Apache-2.0
"""What annotations, labels and policies say, as values of the configuration (pure), and complaints where it cannot be.

What comes from the API server is written by who may make pods: any text may stand in it. A value counts once the
configuration's own schema takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fairsched.base.printable import printable
from fairsched.config.models import NAME, Child
from fairsched.k8s.objects import annotations_of, labels_of, name_of, space_of, text_of
from fairsched.k8s.teams.queues import KEY as QUEUES

PREFIX = "fairsched.io/"
KEYS = {"weight": "weight", "class": "class", "quota": "quota", "min": "min", "vram-limit": "vram_limit"}
"""Key of an annotation: key of the configuration."""
WRITTEN = {key: name for name, key in KEYS.items()}
GROUP = "tenant"
_OTHERS = ("never-evict", "escalation", "config")
"""Keys that are no wish: what escalation reads and writes."""
_OF_SPACES = (*_OTHERS, QUEUES.removeprefix(PREFIX))
"""Of namespaces: what the controller of teams writes (k8s/teams/placed.py)."""
NOT_UNDERSTOOD = "FairschedNotUnderstood"
OUT_OF_BOUNDS = "FairschedOutOfBounds"
_SHOWN_CHARS = 60
_MOST_KEYS = 3
"""That nobody knows, in one complaint: an object may have thousands."""
Values = dict[str, Any]
"""By keys of the configuration, as plain data."""


@dataclass(frozen=True)
class Complaint:
    """What a pod, a namespace or a policy says and does not get."""

    namespace: str
    """Empty: it is said of no one namespace."""
    name: str
    """Of the pod; empty: it is the namespace itself."""
    uid: str
    text: str
    reason: str = NOT_UNDERSTOOD
    """Of the Event."""

    def __str__(self) -> str:
        if not self.namespace:
            return self.text
        return f"{self.namespace}/{self.name}: {self.text}" if self.name else f"{self.namespace}: {self.text}"


def complaint(of: Mapping[str, Any], text: str, reason: str = NOT_UNDERSTOOD) -> Complaint:
    namespace, name = space_of(of), name_of(of)
    if not namespace:  # it is one
        namespace, name = name, ""
    return Complaint(namespace, name, text_of(of, "uid"), text, reason)


def keys_said(of: Mapping[str, Any]) -> dict[str, str]:
    """Our keys, without the prefix, as far as they are a wish."""
    others = _OTHERS if space_of(of) else _OF_SPACES
    found: dict[str, str] = {}
    for said in (labels_of(of), annotations_of(of)):
        for key, value in said.items():
            bare = str(key).removeprefix(PREFIX)
            if bare != key and bare not in others:
                found[bare] = str(value)
    return found


def values_said(of: Mapping[str, Any], complaints: list[Complaint]) -> Values:
    """What the configuration takes of what a pod or a namespace says."""
    found: Values = {}
    said = keys_said(of)
    unknown = [PREFIX + key for key in said if key not in KEYS and key != GROUP]
    if unknown:
        more = f" and {len(unknown) - _MOST_KEYS} more" if len(unknown) > _MOST_KEYS else ""
        known = ", ".join([*KEYS, GROUP])
        text = f"{', '.join(unknown[:_MOST_KEYS])}{more}: there is no such key; known: {known}"
        complaints.append(complaint(of, text))
    for key, text in said.items():
        if key not in KEYS:
            continue
        why = _take(KEYS[key], text, found)
        if why is not None:
            shown = printable(text)[:_SHOWN_CHARS]
            complaints.append(complaint(of, f"{PREFIX}{key}: {shown!r}: {why}"))
    return found


def group_said(pod: Mapping[str, Any], complaints: list[Complaint]) -> str | None:
    """The child that it shares with others; None: it is one by itself."""
    text = keys_said(pod).get(GROUP)
    if text is None or NAME.fullmatch(text):
        return text
    shown = printable(text)[:_SHOWN_CHARS]
    complaints.append(complaint(pod, f"{PREFIX}{GROUP}: {shown!r}: write 1 to 64 of a-z 0-9 . _ -"))
    return None


def values_of_policy(said: Mapping[str, Any], where: str, complaints: list[Complaint]) -> Values:
    """The same of a part of a policy, which the API server has checked already, by some version's definition."""
    found: Values = {}
    for key, value in said.items():
        why = _take(key, value, found)
        if why is not None:
            shown = printable(str(value))[:_SHOWN_CHARS]
            complaints.append(Complaint("", "", "", f"{where}: {WRITTEN[key]}: {shown!r}: {why}"))
    return found


def taken(key: str, said: Any) -> Any:
    """What is said, as the configuration has it under `key`, as plain data. Raises ValueError, which says why not."""
    if said is None:
        raise ValueError("it is empty")
    try:
        value: Any = float(said) if key == "weight" else said
    except (TypeError, ValueError, OverflowError):
        raise ValueError("it is not a number") from None
    try:
        child = Child.model_validate({key: value})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]["msg"]
        raise ValueError(first.removeprefix("Value error, ")) from None
    return child.model_dump(mode="json", by_alias=True, exclude_unset=True)[key]


def _take(key: str, said: Any, found: Values) -> str | None:
    """Add it to what was found, or say why not."""
    try:
        found[key] = taken(key, said)
    except ValueError as error:
        return str(error)
    return None
