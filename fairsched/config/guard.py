# SPDX-License-Identifier: Apache-2.0
"""The section ``guard``: limits on who may have how much of which GPU and when; docs/guard.md explains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from fairsched.config.reclaim import ReclaimAllow, RuleName
from fairsched.config.section import Section
from fairsched.config.values import Duration, Ratio, Size, listed
from fairsched.config.yamlfile import KeyPath
from fairsched.guard.allow import Allow
from fairsched.guard.breach import Act, Per, What
from fairsched.guard.hours import GuardError, Hours, Maintenance, parse_hours, parse_maintenance, zone_of
from fairsched.guard.rules import Bound, GuardRules, Project

Problem = tuple[KeyPath, str, str]
Knows = Callable[[str], bool]
PerName = Literal["user", "group", "tenant", "project", "gpu"]
MAX_LIMITS = 256
_MAX_LISTED = 1024
_AMOUNTS = {
    "vram": What.VRAM,
    "contexts": What.CONTEXTS,
    "processes": What.PROCESSES,
    "gpu_seconds_per_day": What.GPU_SECONDS,
}
"""Keys with an amount."""


def _names(value: Any) -> Any:
    """Names as texts; a number is a uid."""
    value = listed(value)
    if not isinstance(value, tuple):
        raise ValueError("a list of names is needed, such as [alice, bob]")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (str, int)) or item == "":
            raise ValueError(f"{str(item)[:60]!r} is not a name: put it in quotes")
        if isinstance(item, str) and "*" in item:
            raise ValueError(f"{item[:60]!r}: names are whole; for everybody leave the key out")
    return tuple(str(item) for item in value)


def _selectors(value: Any) -> Any:
    value = listed(value)
    if not isinstance(value, tuple):
        raise ValueError("a list of GPUs is needed, such as [0, 1]")
    for item in value:
        is_index = isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1024
        if not is_index and not (isinstance(item, str) and is_selector(item)):
            raise ValueError(
                f"{str(item)[:60]!r} is not a GPU: its index or how its UUID begins, see nvidia-smi -L"
            )
    return tuple(str(item) for item in value)


def is_selector(text: str) -> bool:
    """An index, or how a UUID begins."""
    return (text.isascii() and text.isdigit() and len(text) < 5) or text.startswith(("GPU-", "MIG-"))


_TEXTS = {"type": "array", "items": {"type": ["string", "integer"]}}
_SOME = Field(min_length=1, max_length=_MAX_LISTED)
Names = Annotated[tuple[str, ...], BeforeValidator(_names), _SOME, WithJsonSchema(_TEXTS)]
Selectors = Annotated[tuple[str, ...], BeforeValidator(_selectors), _SOME, WithJsonSchema(_TEXTS)]
Windows = Annotated[
    tuple[str, ...],
    BeforeValidator(listed),
    Field(max_length=64),
    WithJsonSchema({"type": "array", "items": {"type": "string"}}),
]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
DaySeconds = Annotated[Duration, Field(ge=0, le=1024 * 90_000)]
Pause = Annotated[Duration, Field(ge=0, le=7 * 86_400)]


class GuardProject(Section):
    """Everybody of these tenants, users and groups together is one project."""

    tenants: Names | None = Field(default=None, description="Tenants by name, with their children.")
    users: Names | None = Field(default=None, description="Users by name or uid.")
    groups: Names | None = Field(default=None, description="Groups by name.")


class GuardLimit(Section):
    """One limit: of whom, how much, and what is done about it. At least one amount, GPU or hour must be limited."""

    per: PerName = Field(
        default="user", description="Whose use is added up; each of these is a subject of its own."
    )
    of: Names | None = Field(
        default=None,
        description="Names of subjects (of users also uids, of `gpu` indexes and UUIDs); null = every one of that "
        "kind. A limit that names a subject takes the place of those that name none, for what both limit and "
        "wherever it counts the same GPUs.",
    )
    gpus: Selectors | None = Field(
        default=None, description="Which GPUs count: indexes, or how UUIDs begin; null = all."
    )
    each_gpu: bool = Field(
        default=False, description="The amounts are of each GPU by itself, not of all together."
    )
    vram: Size | None = Field(default=None, description="Memory, such as 20GiB.")
    contexts: Count | None = Field(default=None, description="Open CUDA contexts.")
    processes: Count | None = Field(default=None, description="Processes on a GPU.")
    gpu_seconds_per_day: DaySeconds | None = Field(
        default=None, description="GPU time from midnight to midnight of the zone, such as 3600 or 20h."
    )
    allowed_gpus: Selectors | None = Field(
        default=None, description="May be on these GPUs only: indexes, or how UUIDs begin."
    )
    hours: Windows = Field(
        default=(),
        description="May be on a GPU in these hours only: 'mon-fri 08:00-18:00', 'sat,sun', '22:00-06:00'.",
    )
    zone: str | None = Field(
        default=None, description="Time zone of its hours and days; null = `guard.zone`."
    )
    warnings: int = Field(default=3, ge=1, le=100, description="So many warnings come first.")
    every: Annotated[Duration, Field(ge=1, le=86_400)] = Field(
        default=300.0, description="Between two warnings; only time over the limit counts."
    )
    grace: Pause = Field(
        default=600.0,
        description="From the last warning to the end, and from one batch that is ended to the next.",
    )
    soft: Literal["warn", "hold"] = Field(
        default="warn",
        description="From the first warning on: only tell, or also hold: give its tenants less GPU time, where that "
        "hits nobody else.",
    )
    hard: Literal["none", "end"] = Field(
        default="none",
        description="After warnings and grace: nothing more, or end those that are needed to get below it.",
    )
    force: bool = Field(default=False, description="SIGKILL after SIGTERM's grace.")


class GuardMaintenance(Section):
    """A time in which nobody may be on some GPUs."""

    begin: str = Field(alias="from", description='When it begins, such as "2026-12-24 18:00", in quotes.')
    until: str = Field(description="When it ends.")
    zone: str | None = Field(default=None, description="Time zone of both; null = `guard.zone`.")
    gpus: Selectors | None = Field(default=None, description="Indexes, or how UUIDs begin; null = all.")
    hard: Literal["none", "end"] = Field(
        default="none", description="Only warn, or end who is there when it has begun."
    )
    warn_before: Annotated[Duration, Field(ge=60, le=7 * 86_400)] = Field(
        default=1800.0,
        description="Users are told so long before it begins. Nobody is ended who was not told so long ago.",
    )
    force: bool = Field(default=False, description="SIGKILL after SIGTERM's grace.")


class GuardAllow(ReclaimAllow):
    """Whom no limit ends; they count all the same. Never by a name: anybody may choose one."""


class GuardTape(Section):
    """What was looked at, kept in `state_dir/guard` for `--replay`; the oldest tapes go."""

    max_bytes: Annotated[Size, Field(ge=1 << 20)] = Field(
        default=256 << 20, description="Of all tapes together."
    )
    keep_days: int = Field(default=14, ge=1, le=3650, description="Tapes that ended earlier go.")


class Guard(Section):
    """Limits that are kept while the daemon runs; see docs/guard.md."""

    mode: Literal["off", "dry_run", "act"] = Field(
        default="dry_run",
        description="off looks at nothing; dry_run warns, and writes down what it would do; act holds and ends.",
    )
    interval: Annotated[Duration, Field(ge=1, le=60)] = Field(
        default=10.0, description="Between two looks at all processes."
    )
    zone: str = Field(
        default="UTC", description="Time zone of hours, days and maintenance without their own."
    )
    projects: dict[RuleName, GuardProject] = Field(
        default_factory=dict, max_length=MAX_LIMITS, description="Projects by name."
    )
    limits: dict[RuleName, GuardLimit] = Field(
        default_factory=dict, max_length=MAX_LIMITS, description="Limits by name."
    )
    maintenance: dict[RuleName, GuardMaintenance] = Field(
        default_factory=dict, max_length=MAX_LIMITS, description="Windows of maintenance by name."
    )
    allow: GuardAllow = Field(default_factory=GuardAllow, description="Whom no limit ends.")
    hold_quota: Ratio = Field(
        default=0.05,
        description="`soft: hold`: quota of a tenant that is held, of one GPU; never less than its `min`.",
    )
    tape: GuardTape = Field(default_factory=GuardTape, description="What was looked at.")

    @property
    def is_kept(self) -> bool:
        """Whether there is anything to look for."""
        return self.mode != "off" and bool(self.limits or self.maintenance)

    def rules(self) -> GuardRules:
        """What a judge goes by. Only of a section that has no :func:`problems`."""
        bounds = [bound for name, limit in self.limits.items() for bound in _bounds(name, limit, self.zone)]
        bounds += [_window(name, one, self.zone) for name, one in self.maintenance.items()]
        projects = [
            Project(name, *(frozenset(names or ()) for names in (one.tenants, one.users, one.groups)))
            for name, one in self.projects.items()
        ]
        allow = self.allow
        return GuardRules(
            tuple(bounds),
            tuple(projects),
            Allow(allow.cgroups, allow.units, allow.images, allow.programs),
        )


def _bounds(name: str, limit: GuardLimit, zone: str) -> Iterator[Bound]:
    def bound(what: What, amount: float | None = None, hours: Hours | None = None) -> Bound:
        return Bound(
            limit=name,
            per=Per(limit.per),
            what=what,
            amount=amount,
            of=None if limit.of is None else frozenset(limit.of),
            gpus=limit.gpus,
            each_gpu=limit.each_gpu,
            allowed_gpus=limit.allowed_gpus or (),
            hours=hours,
            zone=zone_of(limit.zone or zone),
            warnings=limit.warnings,
            every_s=limit.every,
            grace_s=limit.grace,
            soft=Act(limit.soft),
            is_hard=limit.hard == "end",
            force=limit.force,
        )

    for key, what in _AMOUNTS.items():
        amount = getattr(limit, key)
        if amount is not None:
            yield bound(what, float(amount))
    if limit.allowed_gpus is not None:
        yield bound(What.GPUS)
    if limit.hours:
        yield bound(What.HOURS, hours=parse_hours(limit.hours, limit.zone or zone))


def _window(name: str, one: GuardMaintenance, zone: str) -> Bound:
    return Bound(
        limit=name,
        per=Per.USER,
        what=What.MAINTENANCE,
        gpus=one.gpus,
        maintenance=_maintenance(name, one, zone),
        warnings=1,
        grace_s=one.warn_before,
        warn_before_s=one.warn_before,
        is_hard=one.hard == "end",
        force=one.force,
    )


def _maintenance(name: str, one: GuardMaintenance, zone: str) -> Maintenance:
    return parse_maintenance(name, one.begin, one.until, one.zone or zone, one.gpus)


def problems(guard: Guard) -> Iterator[Problem]:
    """What no single field can know."""
    bad = list(_tried(("guard", "zone"), partial(zone_of, guard.zone)))
    yield from bad
    zone = "UTC" if bad else guard.zone
    for name, project in guard.projects.items():
        if not (project.tenants or project.users or project.groups):
            yield ("guard", "projects", name), "nobody is in it", "name tenants, users or groups"
    for name, limit in guard.limits.items():
        yield from _limit_problems(name, limit)
    for name, one in guard.maintenance.items():
        at = ("guard", "maintenance", name)
        if name in guard.limits:
            yield (
                at,
                "a limit has the same name",
                "give it another name: the audit log tells them apart by it",
            )
        found = [] if one.zone is None else list(_tried((*at, "zone"), partial(zone_of, one.zone)))
        yield from found or _tried(at, partial(_maintenance, name, one, zone))


def _limit_problems(name: str, limit: GuardLimit) -> Iterator[Problem]:
    at = ("guard", "limits", name)
    amounts = [key for key in _AMOUNTS if getattr(limit, key) is not None]
    if not amounts and limit.allowed_gpus is None and not limit.hours:
        keys = ", ".join([*_AMOUNTS, "allowed_gpus"])
        yield (
            (*at, "hours") if "hours" in limit.model_fields_set else at,
            "it would never be open" if "hours" in limit.model_fields_set else "it limits nothing",
            f"give it one of {keys} or hours",
        )
    found = [] if limit.zone is None else list(_tried((*at, "zone"), partial(zone_of, limit.zone)))
    yield from found
    if limit.hours and not found:
        yield from _tried((*at, "hours"), partial(parse_hours, limit.hours, limit.zone or "UTC"))
    if limit.each_gpu and not amounts:
        yield (*at, "each_gpu"), "it has no amount", f"remove it, or give one of {', '.join(_AMOUNTS)}"
    if limit.force and limit.hard == "none":
        yield (*at, "force"), "nobody is ended by it", "set hard: end, or remove it"
    if limit.per == "gpu":
        yield from _gpu_problems(at, limit)


def _gpu_problems(at: tuple[str, ...], limit: GuardLimit) -> Iterator[Problem]:
    if limit.allowed_gpus is not None:
        yield (*at, "allowed_gpus"), "a GPU is on no other GPU", "set per to user, group, tenant or project"
    if limit.hard == "end" and limit.gpu_seconds_per_day is not None:
        yield (
            (*at, "hard"),
            "of those on a GPU whose day is used up, who used it cannot be told from who has just come",
            "set per to user, group, tenant or project, or hard to none",
        )
    for number, selector in enumerate(limit.of or ()):
        if not is_selector(selector):
            yield (
                (*at, "of", number),
                f"{selector[:60]!r} is not a GPU",
                "name it by its index, or by how its UUID begins (nvidia-smi -L)",
            )


def _tried(key: KeyPath, action: Callable[[], object]) -> Iterator[Problem]:
    try:
        action()
    except GuardError as error:
        yield key, str(error), error.remedy


def notes(guard: Guard, tenants: Iterable[str], knows_user: Knows, knows_group: Knows) -> Iterator[str]:
    """Names that are nobody's: no error, for a user may come tomorrow; GPUs are known to who looks at them."""
    there = set(tenants)
    known: dict[str, Knows] = {
        "tenant": lambda name: name.partition("/")[0] in there,
        "project": guard.projects.__contains__,
        "user": lambda name: name.isdigit() or knows_user(name),
        "group": knows_group,
    }
    for name, limit in guard.limits.items():
        for one in limit.of or ():
            if limit.per in known and not known[limit.per](one):
                yield f"guard.limits.{name}.of: there is no {limit.per} {one}: it limits nobody"
    for name, project in guard.projects.items():
        for kind, names in (("tenant", project.tenants), ("user", project.users), ("group", project.groups)):
            for one in names or ():
                if not known[kind](one):
                    yield f"guard.projects.{name}.{kind}s: there is no {kind} {one}"
