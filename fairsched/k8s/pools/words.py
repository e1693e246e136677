# SPDX-License-Identifier: Apache-2.0
"""Plans as text (pure): in words, and as a unified diff of what each object would be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml

from fairsched.base.text import counted, wrap
from fairsched.k8s.pools.fields import Live, document_of, taint_of
from fairsched.k8s.pools.plan import Act, Change, Step

_ACTS = {
    Act.CREATE: "new",
    Act.APPLY: "",
    Act.REPLACE: "made anew",
    Act.DELETE: "deleted",
    Act.RELEASE: "given up",
    Act.LEAVE: "left as it is",
}


def in_words(steps: Sequence[Step]) -> list[str]:
    """Each step with what it changes, at most 80 columns; then how many."""
    lines: list[str] = []
    for step in steps:
        lines += _step(step)
    return [*lines, summary(steps)]


def summary(steps: Iterable[Step]) -> str:
    """``2 objects would change, 1 of them has a conflict.``"""
    listed = [step for step in steps if step.is_difference]
    blocked = sum(bool(step.conflicts) for step in listed)
    if not listed:
        return "nothing to change"
    tail = f", of which {blocked} cannot without --force-conflicts" if blocked else ""
    return f"{counted(len(listed), 'object')} to change{tail}"


def _step(step: Step) -> list[str]:
    act = _ACTS[step.act]
    if step.act is Act.APPLY and not step.is_difference:
        act = "nothing changes; what is so already is ours as well from then on"
    head = f"{step.ref}{': ' if act else ''}{act}"
    lines = wrap(f"{head} ({step.why})" if step.why else head, rest="    ")
    for one in step.changes:
        lines += _change(one)
    for one in step.conflicts:
        now = f"is {_value(one.before)}, set by {', '.join(one.owners)}; wanted {_value(one.after)}"
        lines += wrap(f"! {one.what} {now}", first="  ", rest="      ")
    return lines


def _change(one: Change) -> list[str]:
    """Texts of several lines, as files in a ConfigMap are, with their lines below."""
    before, after = _file(one.before), _file(one.after)
    if before is None or after is None:
        return wrap(change_text(one), first="  ", rest="      ")
    sign = "+" if one.before is None else "-" if one.after is None else "~"
    shown = after or before
    if before and after:
        shown = [line for line in difflib.ndiff(before, after) if not line.startswith("?")]
    lines = wrap(f"{sign} {one.what}:", first="  ", rest="      ")
    for line in shown:
        text = line.lstrip(" ")
        place = " " * (6 + len(line) - len(text))
        lines += wrap(text, first=place, rest=f"{place}  ")
    return lines


def _file(value: Any) -> list[str] | None:
    """The lines of a text that has several, or is not there; None: it is something else."""
    if value is None:
        return []
    return value.splitlines() if isinstance(value, str) and "\n" in value else None


def change_text(one: Change) -> str:
    """``+ label accelerator: h100``, ``- taint a:NoSchedule``, ``~ spec.hard.pods: 5 -> 6``"""
    if one.before is None:
        return f"+ {one.what}: {_value(one.after)}" if one.after != "" else f"+ {one.what}"
    if one.after is None:
        return f"- {one.what}: {_value(one.before)}" if one.before != "" else f"- {one.what}"
    taken = f" (taken over from {', '.join(one.owners)})" if one.owners else ""
    return f"~ {one.what}: {_value(one.before)} -> {_value(one.after)}{taken}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return "''" if value == "" else value.replace("\n", "\\n")
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).strip().removesuffix("...").strip()


# ---- as a diff ----


def as_diff(steps: Iterable[Step]) -> Iterator[str]:
    """Lines of a unified diff, from what is there to what would be."""
    for step in steps:
        if not step.is_difference:
            continue
        name = str(step.ref).replace(" ", "/")
        before, after = _text(_before(step.live)), _text(_after(step))
        yield from difflib.unified_diff(before, after, f"live/{name}", f"wanted/{name}", lineterm="")


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as such."""


def _represent(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)


def _text(document: dict[str, Any] | None) -> list[str]:
    if document is None:
        return []
    return yaml.dump(document, Dumper=_Dumper, sort_keys=True, width=10_000).splitlines()


def _before(live: Live | None) -> dict[str, Any] | None:
    if live is None:
        return None
    document = document_of(live.ref, live.fields)
    if live.taints:
        document["spec"] = {"taints": [str(taint_of(one)) for one in live.taints]}
    return document


def _after(step: Step) -> dict[str, Any] | None:
    if step.act is Act.DELETE:
        return None
    live = step.live
    fields = dict(live.fields) if live is not None else {}
    wanted = {} if step.act is Act.RELEASE else dict(step.fields)
    if live is not None:
        for path in live.applied - set(wanted):
            if not live.others(path):
                fields.pop(path, None)
    fields.update({**wanted, **step.patch})
    document = document_of(step.ref, fields)
    taints = step.taints if step.taints is not None else live.taints if live is not None else ()
    if taints:
        document["spec"] = {"taints": [str(taint_of(one)) for one in taints]}
    return document


# ---- for machines ----


def plain(step: Step) -> dict[str, Any]:
    """A step for JSON."""

    def change(one: Change) -> dict[str, Any]:
        owners = {"owners": list(one.owners)} if one.owners else {}
        return {"what": one.what, "before": one.before, "after": one.after, **owners}

    return {
        "act": step.act.value,
        "kind": step.ref.kind,
        "namespace": step.ref.namespace or None,
        "name": step.ref.name,
        "why": step.why or None,
        "changes": [change(one) for one in step.changes],
        "conflicts": [change(one) for one in step.conflicts],
    }
