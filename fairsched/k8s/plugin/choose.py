# SPDX-License-Identifier: Apache-2.0
"""Chooses which free shares a container gets (pure).

Problem. The kubelet would give any: shares of four GPUs to one container that asks for four, of which its program uses
one; or a bit of every GPU, until no GPU has room for who asks for much.

Approach. As few GPUs as can be: first those that the container has shares of anyway, then one GPU that has room for the
rest. ``pack`` takes the fullest of those, which leaves the others whole; ``spread`` the emptiest, where fewest have to
share. Where none has room, the emptiest GPUs are taken whole, which needs the fewest, and the last is chosen as before.
The lowest numbers first, so that the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from fairsched.k8s.plugin.shares import parse

How = Literal["pack", "spread"]


def choose(available: Iterable[str], must: Sequence[str], size: int, how: How) -> list[str]:
    """`size` of the shares `available`, with all of `must`; fewer where there are not so many.

    Raises shares.BadShare.
    """
    chosen = list(dict.fromkeys(must))
    taken = set(chosen)
    free: dict[str, list[tuple[int, str]]] = {}
    for one in sorted(set(available) - taken):
        uuid, number = parse(one)
        free.setdefault(uuid, []).append((number, one))
    for shares in free.values():
        shares.sort()

    def take(uuid: str) -> None:
        wanted = size - len(chosen)
        chosen.extend(one for _, one in free.pop(uuid)[:wanted])

    for uuid in dict.fromkeys(parse(one)[0] for one in chosen):
        if len(chosen) < size and uuid in free:
            take(uuid)
    while len(chosen) < size and free:
        wanted = size - len(chosen)
        roomy = [uuid for uuid in free if len(free[uuid]) >= wanted]
        take(_best(roomy or free, lambda uuid: len(free[uuid]), is_least=bool(roomy) and how == "pack"))
    return chosen[: max(size, len(set(must)))]


def _best(uuids: Iterable[str], room: Callable[[str], int], *, is_least: bool) -> str:
    """With the least or the most room; of equals the first by name."""
    return min(uuids, key=lambda uuid: (room(uuid) if is_least else -room(uuid), uuid))
