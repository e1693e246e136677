# SPDX-License-Identifier: Apache-2.0
"""Defines what each tool takes, as models that refuse everything else, and finds the holders that are meant.

The words are those of ``fairsched ps`` and ``fairsched reclaim``. There is one difference: no regular expressions. One
can be written that is never done with a long command, and it would stop the server; ``name_contains`` finds plain text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from fairsched.reclaim.expression import Filter, FilterError, Term, both, parse, term
from fairsched.reclaim.holder import GpuView, Holder, Listing
from fairsched.reclaim.listing import gpus_called
from fairsched.reclaim.session import Wish

MAX_PIDS = 200
"""In one plan. More is refused: a person cannot look through them."""
MAX_GRACE_S = 120
_PATTERN = re.compile(r"name!?~")

Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Pid = Annotated[int, Field(ge=1, le=2**22)]
"""2^22 is the kernel's largest (PID_MAX_LIMIT)."""


class Arguments(BaseModel):
    """Of a tool that takes none."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Selectors(Arguments):
    """Which holders are meant; all that is given must hold."""

    tenant: Word | None = Field(None, description="Of this tenant; '-' = of none.")
    container: Word | None = Field(None, description="In this container or pod: a name or an id.")
    gpu: Word | None = Field(None, description="On this GPU: its index, or the beginning of its UUID.")
    filter: Word | None = Field(
        None,
        description=(
            "Terms with blanks between them, as in `fairsched ps --filter`: user= tenant= container= gpu= pid= "
            "vram>20G age>1d idle>30m orphan zombie name=PROGRAM; != and !orphan are contraries. Not name~."
        ),
    )
    name_contains: Word | None = Field(None, description="The command has this text in it.")

    def words(self) -> list[str]:
        """As terms of the filter language."""
        pairs = (("tenant=", self.tenant), ("container=", self.container))
        return [key + value for key, value in pairs if value is not None]

    @property
    def is_all(self) -> bool:
        """Nothing is asked for, so everything is meant."""
        return not self.words() and self.gpu is None and self.filter is None and self.name_contains is None

    def passes(self, gpus: tuple[GpuView, ...]) -> Filter:
        """Raises FilterError, NoSuchGpu."""
        found = Filter(tuple(map(term, self.words())))
        if self.filter is not None:
            found = both(found, _parse(self.filter))
        if self.name_contains is not None:
            text = self.name_contains
            found = both(found, [Term(f"name has {text!r}", lambda one: _has(one, text))])
        if self.gpu is not None:
            uuids = gpus_called(self.gpu, gpus)
            found = both(found, [Term(f"gpu={self.gpu}", lambda one: one.status.gpu in uuids)])
        return found

    def text(self) -> str:
        """For the audit log."""
        given = self.model_dump(
            exclude_none=True, exclude_defaults=True, exclude={"reason"}
        )  # stands by itself
        return " ".join(shlex.quote(f"{key}={value}") for key, value in given.items())


class ListArguments(Selectors):
    """Of list_gpu_processes."""

    user: Word | None = Field(None, description="This user's: a name or a uid.")
    older_than: Word | None = Field(None, description="Started so long ago: 1d.")
    vram_over: Word | None = Field(None, description="With more GPU memory: 20G.")
    idle_for: Word | None = Field(None, description="Hold a GPU and launched nothing for so long: 10m.")
    orphans: bool = Field(False, description="Only those whose parent is gone.")
    zombies: bool = Field(False, description="Only those that are defunct, wholly or to look at.")
    sort: Literal["time", "vram", "age", "idle", "pid"] = Field("time", description="Largest first.")
    limit: int = Field(50, ge=1, le=200)
    offset: int = Field(0, ge=0, le=100_000)

    def words(self) -> list[str]:
        pairs = (("user=", self.user), ("age>=", self.older_than), ("vram>", self.vram_over))
        more = [key + value for key, value in (*pairs, ("idle>=", self.idle_for)) if value is not None]
        marks = [word for word, is_asked in (("orphan", self.orphans), ("zombie", self.zombies)) if is_asked]
        return [*super().words(), *more, *marks]


class PlanArguments(Selectors):
    """Of plan_reclaim."""

    pids: list[Pid] = Field(
        default_factory=list, max_length=MAX_PIDS, description="These and their descendants."
    )
    start_ticks: dict[str, int] = Field(
        default_factory=dict,
        max_length=MAX_PIDS,
        description="By pid: start_ticks as list_gpu_processes has it; another process with that pid is refused.",
    )
    keep_parent: bool = Field(False, description="Keep the root of each tree; end its descendants.")
    grace_s: int = Field(30, ge=1, le=MAX_GRACE_S, description="After SIGTERM.")
    reason: Word | None = Field(None, description="Why, for the audit log.")

    @property
    def is_forced(self) -> bool:
        return False

    @property
    def is_all(self) -> bool:
        return super().is_all and not self.pids

    def words(self) -> list[str]:
        chosen = [f"pid={','.join(map(str, self.pids))}"] if self.pids else []
        return [*super().words(), *chosen]

    def wish(self, listing: Listing) -> Wish:
        """Raises FilterError, NoSuchGpu for what cannot be understood."""
        self.passes(listing.gpus)

        def choose(now: Listing) -> list[Holder]:
            passes = self.passes(now.gpus)
            return [holder for holder in now.holders if passes(holder)]

        # Pids that alone choose may be parents of holders, as with `fairsched reclaim --pid`.
        is_alone = bool(self.pids) and super().is_all
        named = {pid: self.start_ticks.get(str(pid)) for pid in self.pids} if is_alone else {}
        if self.start_ticks and not is_alone:
            choose = _only(choose, self.start_ticks)
        uuids = frozenset[str]() if self.gpu is None else gpus_called(self.gpu, listing.gpus, is_one=True)
        gpu = next(iter(uuids)) if len(uuids) == 1 else None
        return Wish(choose, self.text(), named, self.keep_parent, gpu)


class ForcePlanArguments(PlanArguments):
    """The same where SIGKILL is allowed."""

    force: bool = Field(False, description="SIGKILL to who has not ended after the grace.")

    @property
    def is_forced(self) -> bool:
        return self.force


class ConfirmArguments(Arguments):
    """Of confirm_reclaim."""

    plan_id: Annotated[str, StringConstraints(min_length=1, max_length=100)] = Field(
        description="As plan_reclaim returned it."
    )
    pids: list[Pid] = Field(
        min_length=1,
        max_length=MAX_PIDS,
        description="All pids of the plan, so that whoever approves this call sees whom it ends.",
    )


class TenantArguments(Arguments):
    """Of explain_tenant."""

    tenant: Word


class AuditArguments(Arguments):
    """Of audit_entries."""

    last: int = Field(20, ge=1, le=100, description="So many entries, the latest ones.")


def _parse(text: str) -> Filter:
    """Raises FilterError."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []  # which parse() tells of
    if any(_PATTERN.match(word) for word in words):
        raise FilterError(
            "regular expressions are not taken from an assistant", remedy="use name_contains, or name=PROGRAM"
        )
    return parse(text)


def _has(holder: Holder, text: str) -> bool | None:
    return None if holder.command is None else text in holder.command


def _only(choose: Any, start_ticks: Mapping[str, int]) -> Any:
    """Without those whose start time is another than the one that was given."""

    def chosen(now: Listing) -> list[Holder]:
        found: list[Holder] = choose(now)
        return [
            one
            for one in found
            if str(one.pid) not in start_ticks
            or (one.facts is not None and one.facts.start_ticks == start_ticks[str(one.pid)])
        ]

    return chosen
