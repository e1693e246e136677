# SPDX-License-Identifier: Apache-2.0
"""What samples say of work that is in no account is in the Snapshot, and charged to whose it is."""

from __future__ import annotations

from fairsched.observe.tree import Observation, Tree, build_snapshot
from tests.support import FakeTree
from tests.unit.observe.test_tree import GPUS, S, files, id_of, row, tree

__all__ = ["files", "tree"]


def test_what_samples_say_that_a_tenant_had_beyond_its_calls_is_charged_to_it(
    tree: Tree, files: FakeTree
) -> None:
    chat, train = id_of(files, "/gpu/chat"), id_of(files, "/gpu/train")
    rows = [row(chat, S // 2), row(train, S // 10)]
    uncharged = {("train", "GPU-a"): 0.25, ("train", "GPU-b"): 0.5}
    for doubted in (frozenset(), {("train", "GPU-a")}):
        seen = Observation(S, S, rows, uncharged=uncharged, doubted=doubted)
        uses = {(use.tenant, use.gpu): use for use in build_snapshot(seen, tree, GPUS)[0].uses}
        assert uses["chat", "GPU-a"].most_ns is None
        one, other = uses["train", "GPU-a"], uses["train", "GPU-b"]
        assert (one.used_ns, one.charged_ns, one.is_enforced) == (S // 10, S // 10 + S // 4, True)
        assert (other.used_ns, other.charged_ns, other.has_demand, other.may_be_owed) == (
            0,
            S // 2,
            True,
            False,
        )
