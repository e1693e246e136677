# SPDX-License-Identifier: Apache-2.0
"""The section ``reclaim``: rogue rules, and whom none may accuse; docs/reclaim.md explains them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from fairsched.config.section import Section
from fairsched.config.values import Ratio, Size, listed
from fairsched.config.yamlfile import KeyPath
from fairsched.guard.allow import Allow
from fairsched.guard.finding import MIN_SCORE, Rule
from fairsched.guard.rogue import BUILT_IN
from fairsched.guard.thresholds import KINDS, Thresholds

RuleKind = Literal["no_progress", "orphan", "age", "idle_hoarder", "unknown_image", "miner", "evasion"]
Problem = tuple[KeyPath, str, str]
MAX_RULES = 64
_MAX_LISTED = 1024
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OPTIONAL = {"vram": "vram_bytes"}
"""Keys that thresholds call something else."""


def _texts(value: Any, what: str) -> Any:
    value = listed(value)
    if not isinstance(value, tuple):
        raise ValueError(f"a list of {what} is needed")
    for item in value:
        if not isinstance(item, str):
            raise ValueError(f"{str(item)[:60]!r} is not a text: put it in quotes")
    return value


def _digests(value: Any) -> Any:
    value = _texts(value, "digests")
    for item in value:
        if not _DIGEST.fullmatch(item):
            raise ValueError(
                f"{item[:60]!r} is not a digest: sha256: and 64 of 0-9 a-f; names and prefixes allow nobody"
            )
    return value


def _cgroups(value: Any) -> Any:
    value = _texts(value, "cgroups")
    for item in value:
        if not item.startswith("/") or item != "/" + "/".join(item.strip("/").split("/")):
            raise ValueError(
                f"{item[:60]!r} is not a cgroup: a path below the mount, such as /gpu.slice/chat"
            )
        if item == "/" or "*" in item or ".." in item.split("/"):
            raise ValueError(f"{item[:60]!r}: the whole path of one cgroup is needed, and not that of all")
    return value


def _units(value: Any) -> Any:
    value = _texts(value, "units")
    for item in value:
        if "/" in item or "*" in item or not item.endswith((".service", ".scope", ".slice", ".socket")):
            raise ValueError(f"{item[:60]!r} is not the whole name of a unit, such as chat.service")
    return value


def _words(value: Any) -> Any:
    value = _texts(value, "regular expressions")
    for item in value:
        try:
            pattern = re.compile(item)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{item[:60]!r} is not a regular expression: {error}") from None
        if pattern.search(""):
            raise ValueError(f"{item[:60]!r} matches every command")
    return value


_TEXTS = {"type": "array", "items": {"type": "string"}}
_NUMBERS = {"type": "array", "items": {"type": "integer"}}
_SOME = Field(max_length=_MAX_LISTED)
Digests = Annotated[tuple[str, ...], BeforeValidator(_digests), _SOME, WithJsonSchema(_TEXTS)]
Cgroups = Annotated[tuple[str, ...], BeforeValidator(_cgroups), _SOME, WithJsonSchema(_TEXTS)]
Units = Annotated[tuple[str, ...], BeforeValidator(_units), _SOME, WithJsonSchema(_TEXTS)]
Expressions = Annotated[
    tuple[str, ...], BeforeValidator(_words), Field(max_length=64), WithJsonSchema(_TEXTS)
]
Port = Annotated[int, Field(ge=1024, le=65535)]
Ports = Annotated[tuple[Port, ...], BeforeValidator(listed), _SOME, WithJsonSchema(_NUMBERS)]


class ReclaimRule(Section):
    """A rule beside the built-in ones; one named as a kind takes its place. null = as built in; a score of 0 = off."""

    kind: RuleKind | None = Field(default=None, description="null: its name is the kind.")
    score: Ratio | None = Field(default=None, description="What a whole match is worth, 0 to 1.")
    for_s: int | None = Field(
        default=None, ge=1, le=10**9, description="How long; of all kinds but `unknown_image`."
    )
    long_s: int | None = Field(
        default=None, ge=1, le=10**9, description="`idle_hoarder`: so long nobody rests who works."
    )
    load: Ratio | None = Field(default=None, description="`no_progress`, `miner`: at least so much of a GPU.")
    vram: Size | None = Field(
        default=None, description="`idle_hoarder`: holds at least this; `miner`: at most this."
    )
    vram_change: Ratio | None = Field(
        default=None, description="`no_progress`, `miner`: memory that changes less stays as it is."
    )
    evenness: Ratio | None = Field(
        default=None, description="`miner`: deviation of the rate of launches, at most."
    )
    known: Digests | None = Field(
        default=None,
        description="`unknown_image`: images that are known, sha256:...; without them none is unknown.",
    )
    ports: Ports | None = Field(default=None, description="`miner`: ports of pools, from 1024.")
    words: Expressions | None = Field(
        default=None, description="`miner`: regular expressions for its command, in any case."
    )
    users: int | None = Field(
        default=None, ge=2, le=1024, description="`evasion`: users or tenants, at least."
    )
    gpus: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] | None = Field(
        default=None, description="`evasion`: GPUs that one may use on average."
    )
    common_ports: Ports | None = Field(
        default=None, description="`evasion`: ports of services that a site shares; they prove nothing."
    )


RuleName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


class ReclaimAllow(Section):
    """Whom no rule may accuse. Never by a name: anybody may choose one."""

    cgroups: Cgroups = Field(default=(), description="As in /proc/PID/cgroup, with all below them.")
    units: Units = Field(default=(), description="Units of the host's systemd, whole names.")
    images: Digests = Field(default=(), description="Digests of images, sha256:...")
    programs: Digests = Field(default=(), description="Digests of the files that run, sha256:...")


class Reclaim(Section):
    """Rogue rules, for `fairsched audit rogue`; they accuse, and end nobody."""

    rules: dict[RuleName, ReclaimRule] = Field(
        default_factory=dict,
        max_length=MAX_RULES,
        description="Rules by name, beside the built-in one of each kind; one named as a kind takes its place.",
    )
    allow: ReclaimAllow = Field(default_factory=ReclaimAllow, description="Whom no rule may accuse.")
    min_score: Ratio = Field(default=MIN_SCORE, description="Processes with less are not reported.")

    def rogue_rules(self) -> tuple[Rule, ...]:
        """Those in force, the built-in ones first."""
        rules = {rule.name: rule for rule in BUILT_IN}
        for name, rule in self.rules.items():
            rules[name] = Rule(name, _thresholds(rule.kind or name, rule))
        return tuple(rule for rule in rules.values() if rule.thresholds.score > 0)

    def allowed(self) -> Allow:
        allow = self.allow
        return Allow(allow.cgroups, allow.units, allow.images, allow.programs)


def problems(reclaim: Reclaim) -> Iterator[Problem]:
    """Keys that do not fit the kind of their rule."""
    for name, rule in reclaim.rules.items():
        kind = rule.kind or name
        if kind not in KINDS:
            yield ("reclaim", "rules", name), "its name is no kind", f"add kind: one of {', '.join(KINDS)}"
            continue
        known = [field.name for field in fields(KINDS[kind])]
        for key in sorted(rule.model_fields_set - {"kind"}):
            if _OPTIONAL.get(key, key) not in known:
                message = f"rules of the kind {kind} have no such key"
                yield (
                    ("reclaim", "rules", name, key),
                    message,
                    "remove it, or name the kind that it is meant for",
                )


def _thresholds(kind: str, rule: ReclaimRule) -> Thresholds:
    given = {
        _OPTIONAL.get(key, key): value
        for key in rule.model_fields_set - {"kind"}
        if (value := getattr(rule, key)) is not None
    }
    made: Thresholds = replace(KINDS[kind](), **given)
    # what is worth less than a whole match never is worth more
    weak = {field.name: getattr(made, field.name) for field in fields(made) if field.name.endswith("_score")}
    return replace(made, **{name: min(value, made.score) for name, value in weak.items()})
