# SPDX-License-Identifier: Apache-2.0
"""The contexts of an account, found by key, and by cgroup for holds: hundreds of those a second, each of one tenant.

A cgroup that is made and removed between two looks is in no list of ours. The kernel knew whose it was when it saw the
work (bpf/budget.h): so what is in a cgroup that nobody knows is where the kernel charges it, in the cgroup of its
tenant. Else whoever goes to a new cgroup a hundred times a second would be nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from fairsched.accounting.context import Context, Move, ProcessUse, ProcessUses, row_of
from fairsched.bpf import abi
from fairsched.cgroup.tree import innermost_known
from fairsched.model import Confidence, ContextKey

_LOOKED_AT_REST = 64
"""In one read, about: a tenant may have a thousand contexts that do nothing."""


class Contexts:
    """Each in one place by its key and in one by its cgroup."""

    def __init__(self) -> None:
        self._by_key: dict[ContextKey, Context] = {}
        self._by_cgroup: dict[int, dict[ContextKey, Context]] = {}
        self._turn = 0
        self._placed: set[ContextKey] = set()
        """Those whose cgroup nobody knew: they are in their tenant's until somebody does."""
        self.is_stale = True
        """Other cgroups may be known than at the last :meth:`place`."""
        self._lost: set[int] = set()
        """Cgroups that nobody knew then, and whose contexts have stayed there: they are in no tenant. Not asked again,
        for whoever is heard of is looked at anyway."""
        self._unknown: set[int] = set()
        """Cgroups that work was seen in since the last look, and that nobody knows: gone again, or new."""
        self._left_wanting: dict[tuple[int, int], int] = {}
        """(Cgroup, GPU) that was held wanting something, and by which process, which has ended meanwhile."""

    def __contains__(self, key: ContextKey) -> bool:
        return key in self._by_key

    def get(self, key: ContextKey) -> Context | None:
        return self._by_key.get(key)

    def all(self) -> list[Context]:
        """A copy: they may come and go meanwhile."""
        return list(self._by_key.values())

    def due(self, rows: ProcessUses) -> list[Context]:
        """Those to look at in this read: all that are not at rest, and of the others some in turn.

        Those that are left out have their rows. What is heard of one ends its rest; what is not heard, because its
        tenant has used up its edges, is seen when its turn comes.
        """
        contexts = list(self._by_key.values())
        rounds = -(-len(contexts) // _LOOKED_AT_REST)
        if rounds <= 1:
            return contexts
        self._turn = turn = (self._turn + 1) % rounds
        due, left = [], {}
        for context in contexts:
            cached = context.cached
            if cached is None or not cached.is_at_rest or context.key[0] % rounds == turn:
                due.append(context)
            else:
                left[context.cgroup_id, context.tgid, context.gpu, cached.sure] = context
        for (*_, sure), context in left.items():
            row = row_of(rows, context)
            row.confidence = row.confidence.and_of(sure)
        return due

    def of(self, cgroup_ids: Iterable[int]) -> list[Context]:
        """Those of these cgroups. A tenant may have thousands, and few of them work: the fewer are gone through."""
        wanted = cgroup_ids if isinstance(cgroup_ids, Set) else set(cgroup_ids)
        if len(wanted) > len(self._by_cgroup):
            groups = [group for cgroup_id, group in self._by_cgroup.items() if cgroup_id in wanted]
        else:
            groups = [group for cgroup_id in wanted if (group := self._by_cgroup.get(cgroup_id))]
        return [context for group in groups for context in group.values()]

    def add(self, context: Context) -> None:
        self._by_key[context.key] = context
        self._by_cgroup.setdefault(context.cgroup_id, {})[context.key] = context

    def move(self, context: Context, cgroup_id: int, t_ns: int) -> Move:
        """Its process is in another cgroup now."""
        self._leave(context)
        move = Move(t_ns, context.key, context.tgid, context.gpu, context.cgroup_id, cgroup_id)
        context.cgroup_id = cgroup_id
        self._by_cgroup.setdefault(cgroup_id, {})[context.key] = context
        return move

    def place_of(
        self, key: ContextKey, cgroup_id: int, live: abi.Ctx, tenant_of: Callable[[int], str | None]
    ) -> int:
        """Where work of a context belongs that was seen in a cgroup. ``live``: what BPF has of it now."""
        self._placed.discard(key)
        if tenant_of(cgroup_id) is not None or live.generation != key[1]:
            return cgroup_id
        self._unknown.add(cgroup_id)
        place = innermost_known((cgroup_id, int(live.charged_id)), tenant_of) or cgroup_id
        if place != cgroup_id:
            self._placed.add(key)
        return place

    def place(self, tenant_of: Callable[[int], str | None], live_of: Callable[[int], abi.Ctx]) -> set[int]:
        """Have all be where somebody knows; returns the cgroups that work was seen in and that nobody knows.

        Costs nothing while all are where they were and the tenants' cgroups are the same.
        """
        if self.is_stale:
            self._place_lost(tenant_of, live_of)
            self.is_stale = False
        for context in list(filter(None, map(self.get, self._placed))):
            self._place_again(context, tenant_of, live_of)
        unknown = self._unknown
        self._unknown = set()
        return unknown

    def _place_lost(self, tenant_of: Callable[[int], str | None], live_of: Callable[[int], abi.Ctx]) -> None:
        """Those in cgroups that were known, or not looked at yet, and are not known."""
        asked = self._lost
        self._lost = {cgroup_id for cgroup_id in self._by_cgroup if tenant_of(cgroup_id) is None}
        for context in self.of(self._lost - asked):
            self._place_again(context, tenant_of, live_of)

    def _place_again(
        self,
        context: Context,
        tenant_of: Callable[[int], str | None],
        live_of: Callable[[int], abi.Ctx],
    ) -> None:
        live = live_of(context.key[0])
        if live.generation == context.key[1]:
            place = self.place_of(context.key, int(live.cgroup_id), live, tenant_of)
            if place != context.cgroup_id:
                self.move(context, place, 0)

    def drop(self, context: Context) -> None:
        """Harmless when it is gone already."""
        self._placed.discard(context.key)
        if self._by_key.pop(context.key, None) is not None:
            self._leave(context)
            if context.is_held and context.held_with_demand:
                self._left_wanting[context.cgroup_id, context.gpu] = context.tgid

    def want_on(
        self, rows: ProcessUses, tenant_of: Callable[[int], str | None], is_lived_in: Callable[[str], bool]
    ) -> None:
        """Have tenants want it still that wanted something when they were held: where a process has ended since, nobody
        knows what the others would have done. Else who ends its processes while it is held, or has them end, is let go
        with its debt. ``is_lived_in``: has a tenant a process left."""
        if not self._left_wanting:
            return
        # One cgroup speaks for its tenant, which may make as many as it likes.
        left = {(tenant_of(at[0]), at[1]): (at, tgid) for at, tgid in self._left_wanting.items()}
        lived_in = {tenant for tenant, _ in left if tenant is not None and is_lived_in(tenant)}
        self._left_wanting = {at: tgid for (tenant, _), (at, tgid) in left.items() if tenant in lived_in}
        for (cgroup_id, gpu), tgid in self._left_wanting.items():
            key = cgroup_id, tgid, gpu
            rows.setdefault(key, ProcessUse(*key, 0, False, 0, Confidence.HIGH, 0)).has_demand = True

    def let_go(self, cgroup_ids: Set[int]) -> None:
        """These cgroups run again."""
        for at in [at for at in self._left_wanting if at[0] in cgroup_ids]:
            del self._left_wanting[at]

    def _leave(self, context: Context) -> None:
        group = self._by_cgroup[context.cgroup_id]
        del group[context.key]
        if not group:
            del self._by_cgroup[context.cgroup_id]
