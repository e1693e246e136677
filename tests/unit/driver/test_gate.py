# SPDX-License-Identifier: Apache-2.0
"""From configuration and devices to rules."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairsched.cgroup.names import Book, Names
from fairsched.config import CgroupOwners, Config, from_bytes
from fairsched.driver.gate import GateRules, choose_rules, is_asked_for, places_to_watch
from fairsched.driver.inventory import Devices

UUID = "GPU-5f2c1a90-0000-4000-8000-00000000000{}"
DEVICES = Devices({minor: UUID.format(minor) for minor in range(4)})
PATHS = [
    "/gpu.slice",
    "/gpu.slice/a",
    "/gpu.slice/a/x",
    "/gpu.slice/a/x/deep",
    "/gpu.slice/b",
    "/system.slice",
]


def make_config(tenants: dict[str, Any], **top: Any) -> Config:
    return from_bytes(yaml.safe_dump({"mode": "enforce", "tenants": tenants, **top}).encode(), "f")


def choose(
    config: Config, paths: list[str] | None = None, devices: Devices = DEVICES, levels: int = 32
) -> GateRules:
    by_id = dict(enumerate(PATHS if paths is None else paths))
    return choose_rules(by_id, CgroupOwners(config), config, devices, levels)


def shown(rules: GateRules) -> dict[str, str]:
    return {rule.path: str(rule) for rule in rules.by_cgroup.values()}


def test_without_a_key_nothing_is_asked_for_and_nothing_done() -> None:
    config = make_config({"a": {}, "b": {}})
    assert not is_asked_for(config)
    assert choose(config) == GateRules({}, {})


@pytest.mark.parametrize(
    ("tenants", "top"),
    [
        ({"a": {"gpus": [0]}}, {}),
        ({"a": {"gpus": "none"}}, {}),
        ({"a": {"children": {"x*": {"gpus": "all"}}}}, {}),
        ({}, {"devices": {"default": "deny"}}),
    ],
)
def test_one_key_anywhere_or_default_deny_asks_for_it(tenants: dict[str, Any], top: dict[str, Any]) -> None:
    assert is_asked_for(make_config(tenants, **top))


def test_a_tenants_list_becomes_a_rule_of_its_cgroup_alone() -> None:
    config = make_config({"a": {"gpus": [3, UUID.format(1).upper()]}, "b": {"gpus": "all"}})
    rules = choose(config)
    assert shown(rules) == {"/gpu.slice/a": "1,3", "/gpu.slice/b": "all"}
    assert rules.tops == {0: "/gpu.slice"}
    assert rules.warnings == ()


def test_default_deny_is_for_those_without_a_list() -> None:
    config = make_config({"a": {"gpus": [1]}, "b": {}}, devices={"default": "deny"})
    assert shown(choose(config)) == {"/gpu.slice": "none", "/gpu.slice/a": "1"}
    config = make_config(
        {"a": {"gpus": [1]}}, devices={"default": "deny", "under": ["gpu.slice/b", "no.slice"]}
    )
    assert shown(choose(config)) == {"/gpu.slice/b": "none", "/gpu.slice/a": "1"}


def test_default_deny_does_not_reach_into_a_tenant_with_a_list() -> None:
    config = make_config({"a": {"gpus": [1]}}, devices={"default": "deny", "under": "gpu.slice/a/x"})
    assert shown(choose(config)) == {"/gpu.slice/a": "1"}


def test_children_inherit_narrow_and_never_widen() -> None:
    children = {"x": {"gpus": [1, 2], "children": {"deep": {"gpus": "all"}}}, "y*": {"gpus": "none"}}
    config = make_config({"a": {"gpus": [0, 1], "children": children}})
    rules = choose(config, [*PATHS, "/gpu.slice/a/y1", "/gpu.slice/a/z"])
    assert shown(rules) == {
        "/gpu.slice/a": "0,1",
        "/gpu.slice/a/x": "1",
        "/gpu.slice/a/x/deep": "1",
        "/gpu.slice/a/y1": "none",
        "/gpu.slice/a/z": "0,1",
    }
    (warning,) = rules.warnings
    assert warning == "tenants.a.children.x.gpus: GPU 2 is not among the parent's (0,1): left out"


def test_an_unknown_gpu_is_named_with_its_key_and_what_there_is() -> None:
    lost = "GPU-00000000-0000-4000-8000-000000000000"
    rules = choose(make_config({"a": {"gpus": [7, lost, 1]}}))
    assert shown(rules) == {"/gpu.slice/a": "1,7"}  # a number stands for a node that may come later
    assert rules.warnings[0].startswith("tenants.a.gpus: there is no GPU 7 now; there is 0 (GPU-5f2c1a90-")
    assert f"there is no GPU {lost} now" in rules.warnings[1]


def test_without_a_driver_numbers_are_taken_as_they_are_and_uuids_wait() -> None:
    rules = choose(make_config({"a": {"gpus": [7, UUID.format(1)]}}), devices=Devices())
    assert shown(rules) == {"/gpu.slice/a": "7"}
    assert [line.split(":")[0] for line in rules.warnings] == ["tenants.a.gpus"]
    assert "none that the driver names" in rules.warnings[0]


def test_a_warning_about_a_pattern_is_given_once() -> None:
    config = make_config({"p": {"cgroup": "gpu.slice/p*", "gpus": [9]}})
    assert len(choose(config, ["/gpu.slice", "/gpu.slice/p1", "/gpu.slice/p2"]).warnings) == 1


def test_a_rule_deeper_than_can_be_looked_up_is_said_and_left_out() -> None:
    config = make_config({"a": {"cgroup": "gpu.slice/**/leaf", "gpus": [0]}})
    deep = "/gpu.slice/1/2/3/leaf"
    rules = choose(config, ["/gpu.slice", deep], levels=4)
    assert rules.by_cgroup == {}
    assert rules.warnings == (f"{deep} lies deeper than 4 levels: no device rule for it",)


def test_tops_are_the_outermost_cgroups_around_rules() -> None:
    kube, top = {"cgroup": "kube.slice/*/pod", "gpus": [1]}, {"cgroup": "top", "gpus": []}
    paths = [*PATHS, "/kube.slice", "/kube.slice/q", "/kube.slice/q/pod", "/top"]
    rules = choose(make_config({"a": {"gpus": [0]}, "k": kube, "top": top}), paths)
    assert sorted(rules.tops.values()) == ["/gpu.slice", "/kube.slice", "/top"]


def test_what_is_watched_is_around_tenants_not_inside() -> None:
    config = make_config({"a": {"gpus": [0]}, "b": {}, "k": {"cgroup": "kube*/**/pod*", "gpus": [1]}})
    paths = [*PATHS, "/kube.slice", "/kube.slice/q", "/kube.slice/q/pod1", "/kube.slice/q/pod1/c"]
    watched = places_to_watch(dict(enumerate(paths)), CgroupOwners(config), config).values()
    assert sorted(watched) == ["/gpu.slice", "/gpu.slice/b", "/kube.slice", "/kube.slice/q"]


def test_where_what_is_matched_by_name_usually_is_is_watched() -> None:
    config = make_config({"a": {"match": {"docker": "chat"}, "gpus": [0]}})
    paths = [*PATHS, "/docker", "/system.slice/x.service"]
    watched = places_to_watch(dict(enumerate(paths)), CgroupOwners(config), config).values()
    assert sorted(watched) == ["/docker", "/system.slice", "/system.slice/x.service"]
    config = make_config({"a": {"match": {"pod": "ml/*"}, "gpus": [0]}})
    paths = [
        "/kubepods",
        "/kubepods.slice/q",
        "/kubelet/kubepods/q",
        "/kubelet.slice/kubelet-kubepods.slice/q",
    ]
    watched = places_to_watch(dict(enumerate([*PATHS, *paths])), CgroupOwners(config), config).values()
    assert sorted(watched) == sorted(paths)


wishes = st.one_of(st.none(), st.sampled_from(["all", "none"]), st.lists(st.integers(0, 5), max_size=4))


@given(parent=wishes, child=wishes, grandchild=wishes, default=st.sampled_from(["allow", "deny"]))
def test_nobody_gets_more_than_the_cgroup_around_it(
    parent: Any, child: Any, grandchild: Any, default: str
) -> None:
    tree = {"gpus": parent, "children": {"x": {"gpus": child, "children": {"deep": {"gpus": grandchild}}}}}
    rules = choose(make_config({"a": tree}, devices={"default": default}))
    by_path = {rule.path: rule for rule in rules.by_cgroup.values()}
    chain = [by_path[path] for path in PATHS[1:4] if path in by_path]
    for outer, inner in pairwise(chain):
        assert outer.is_all or (inner.gpus <= outer.gpus and not inner.is_all)
    for wish, path in ((parent, PATHS[1]), (child, PATHS[2]), (grandchild, PATHS[3])):
        if isinstance(wish, list) and path in by_path:
            assert by_path[path].gpus <= set(wish)
    if (parent, child, grandchild) == (None, None, None):
        assert bool(rules.by_cgroup) is (default == "deny")


class Slowly(Names):
    """Names of pods that are read in a while."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, str] = {}

    def of(self, book: Book, key: str) -> str | None:
        return self.pods.get(key) if book is Book.PODS else None

    def tell(self, uid: str, name: str) -> None:
        self.pods[uid] = name
        self.version += 1


UID, OTHER = "b0b7f2c1-0000-4000-8000-000000000001", "b0b7f2c1-0000-4000-8000-000000000002"


def test_what_an_earlier_daemon_left_on_a_cgroup_stays_until_its_name_is_known() -> None:
    """Else a gate would open for the moment in which a daemon that starts does not know its pods yet."""
    config, names = make_config({"a": {"gpus": [1], "match": {"pod": "ml/a"}}}), Slowly()
    paths = {1: "/kubepods", 2: f"/kubepods/pod{UID}", 3: f"/kubepods/pod{OTHER}", 4: "/system.slice"}
    left = {2: (frozenset({0}), False), 3: (frozenset[int](), False), 4: (frozenset({0}), False)}
    owners = CgroupOwners(config, names)

    def found() -> GateRules:
        return choose_rules(paths, owners, config, DEVICES, 32, left)

    assert shown(found()) == {paths[2]: "0", paths[3]: "none"}, "what has a path alone is decided"
    assert found().tops == {1: "/kubepods"}
    names.tell(UID, "ml/a")
    assert shown(found()) == {paths[2]: "1", paths[3]: "none"}
    names.tell(OTHER, "ml/other")
    assert shown(found()) == {paths[2]: "1"}, "it is nobody's who has a list"
    assert shown(choose_rules(paths, CgroupOwners(config, Slowly()), config, DEVICES, 32)) == {}
