# SPDX-License-Identifier: Apache-2.0
"""Finds the subjects that a process belongs to, the bounds that hold for each, and the GPUs that are meant (pure).

Problem: one process counts for its user, each group of that user, its tenant with all parents of it, projects, and its
GPU. Most of these have no limit, and a limit that names somebody takes the place of one for everybody.

Approach: a subject exists where some bound holds for it; which those are is worked out once. Users are their uids: a
name may be missing for a while, so the last one that was told is kept, and an exception by name with it.

Terms: *ident* is what a subject is known by: the uid of a user, a UUID, else a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairsched.guard.breach import Per, Subject
from fairsched.guard.rules import Bound, GuardRules, Project
from fairsched.guard.sample import Process

SubjectKey = tuple[str, str]
"""``user``, ident."""


def key_of(subject: Subject) -> SubjectKey:
    return (subject.per.value, subject.name if subject.uid is None else str(subject.uid))


def selects(selector: str, uuid: str, index: int | None) -> bool:
    """Whether a GPU is meant; one whose index is not known is meant by no index."""
    if selector.isdigit():
        return index is not None and int(selector) == index
    return uuid.startswith(selector)


class Gpus:
    """Which GPUs selectors mean, as far as GPUs were seen."""

    def __init__(self) -> None:
        self._index: dict[str, int | None] = {}
        self._sets: dict[tuple[str, ...], frozenset[str]] = {}

    def learn(self, seen: Mapping[str, int | None]) -> bool:
        """Whether something is new. An index that is not told any more stays: it is the driver's."""
        is_new = False
        for uuid, index in seen.items():
            known = self._index.get(uuid)
            if uuid not in self._index or (index is not None and index != known):
                self._index[uuid] = index
                is_new = True
        if is_new:
            self._sets.clear()
        return is_new

    def index(self, uuid: str) -> int | None:
        return self._index.get(uuid)

    def meant(self, selectors: tuple[str, ...]) -> frozenset[str]:
        """UUIDs of those that were seen and are meant."""
        found = self._sets.get(selectors)
        if found is None:
            found = self._sets[selectors] = frozenset(
                uuid
                for uuid, index in self._index.items()
                if any(selects(selector, uuid, index) for selector in selectors)
            )
        return found

    def is_doubtful(self, selectors: tuple[str, ...], uuid: str) -> bool:
        """Whether it might be meant by an index that is not known, or, a MIG instance, by the UUID of its GPU."""
        if uuid.startswith("MIG-") and any(selector.startswith("GPU-") for selector in selectors):
            return True
        return self._index.get(uuid) is None and any(selector.isdigit() for selector in selectors)

    @property
    def seen(self) -> Mapping[str, int | None]:
        return self._index


class Subjects:
    """Subjects with bounds, of processes, tenants and GPUs."""

    def __init__(self, rules: GuardRules) -> None:
        self._rules = rules
        self._per = {bound.per for bound in rules.bounds}
        self._projects = rules.projects if Per.PROJECT in self._per else ()
        self.names: dict[int, str] = {}
        """Of users, as they were last told."""

    def of(self, process: Process) -> list[Subject]:
        """Without its GPU. An unknown user or tenant is no subject."""
        found = []
        name = self._name(process)
        if process.uid is not None and name is not None and Per.USER in self._per:
            found.append(Subject(Per.USER, name, process.uid))
        if Per.GROUP in self._per:
            found += [Subject(Per.GROUP, group) for group in process.groups]
        if process.tenant is not None and Per.TENANT in self._per:
            found += [Subject(Per.TENANT, tenant) for tenant in _with_parents(process.tenant)]
        users = {name, str(process.uid)} if process.uid is not None else set()
        for project in self._projects:
            if not (users.isdisjoint(project.users) and project.groups.isdisjoint(process.groups)) or (
                _has_tenant(project, process.tenant)
            ):
                found.append(Subject(Per.PROJECT, project.name))
        return found

    def of_tenant(self, tenant: str) -> list[Subject]:
        """Of whatever runs in a tenant, whoever it is."""
        found = []
        if Per.TENANT in self._per:
            found += [Subject(Per.TENANT, name) for name in _with_parents(tenant)]
        found += [Subject(Per.PROJECT, one.name) for one in self._projects if _has_tenant(one, tenant)]
        return found

    def named(self, key: SubjectKey) -> Subject:
        """The subject of a key."""
        per, ident = Per(key[0]), key[1]
        if per is not Per.USER:
            return Subject(per, ident)
        return Subject(per, self.names.get(int(ident), ident), int(ident))

    def bounds(self, subject: Subject, index: int | None = None) -> tuple[Bound, ...]:
        """Those that hold for it; ``index``: of a GPU."""
        mine = [one for one in self._rules.bounds if one.per is subject.per and _names(one, subject, index)]
        named = [one for one in mine if one.of is not None]
        return tuple(one for one in mine if one.of is not None or not _is_replaced(one, named))

    def _name(self, process: Process) -> str | None:
        """Of its user; the uid where it has none."""
        uid, told = process.uid, process.user
        if uid is None:
            return None
        if told is not None and told != str(uid):
            self.names[uid] = told
        return self.names.get(uid, str(uid))


def _names(bound: Bound, subject: Subject, index: int | None) -> bool:
    if bound.of is None:
        return True
    if subject.per is Per.GPU:
        return any(selects(selector, subject.name, index) for selector in bound.of)
    return subject.name in bound.of or (subject.uid is not None and str(subject.uid) in bound.of)


def _is_replaced(bound: Bound, named: Iterable[Bound]) -> bool:
    """By one that names the subject, limits the same thing, and counts the same GPUs or more."""
    return any(
        one.what is bound.what
        and (one.gpus is None or (bound.gpus is not None and set(bound.gpus) <= set(one.gpus)))
        for one in named
    )


def _with_parents(tenant: str) -> list[str]:
    """``a``, ``a/b``, ``a/b/c``."""
    parts = tenant.split("/")
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]


def _has_tenant(project: Project, tenant: str | None) -> bool:
    return tenant is not None and not project.tenants.isdisjoint(_with_parents(tenant))
