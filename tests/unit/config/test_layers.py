# SPDX-License-Identifier: Apache-2.0
"""Owners of cgroups, overrides over the file, what is shown of both, and the example and docs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from fairsched.config import (
    CgroupOwners,
    Config,
    Overrides,
    diff,
    from_bytes,
    list_settings,
    load_overrides,
    render,
    save_overrides,
    schema,
)
from fairsched.config.overrides import check_set
from fairsched.config.reference import reference
from fairsched.errors import ConfigError
from fairsched.guard.thresholds import KINDS

ROOT = Path(__file__).resolve().parents[3]
TEAM = """
tenants:
  chat: {weight: 6}
  team:
    min: 30%
    children:
      x: {weight: 2, min: 20%}
      "guest-*": {class: batch}
"""


def config(text: str = TEAM) -> Config:
    return from_bytes(text.encode(), "f.yaml")


@pytest.mark.parametrize(
    ("path", "tenant", "cgroup", "is_leaf"),
    [
        ("/gpu.slice/chat", "chat", "/gpu.slice/chat", True),
        ("/gpu.slice/chat/1/2", "chat", "/gpu.slice/chat", True),
        ("/gpu.slice/team/x", "team/x", "/gpu.slice/team/x", True),
        ("/gpu.slice/team/x/deep", "team/x", "/gpu.slice/team/x", True),
        ("/gpu.slice/team/guest-7", "team/guest-7", "/gpu.slice/team/guest-7", True),
        ("/gpu.slice/team/other/deep", "team/other", "/gpu.slice/team/other", True),
        ("/gpu.slice/team", "team", "/gpu.slice/team", False),
    ],
)
def test_every_claimed_cgroup_has_one_owner(path: str, tenant: str, cgroup: str, is_leaf: bool) -> None:
    owner = CgroupOwners(config()).owner(path)
    assert owner is not None
    assert (owner.tenant, owner.cgroup, owner.is_leaf) == (tenant, cgroup, is_leaf)
    assert owner.spec.name == tenant


def test_a_cgroup_nobody_claims_has_no_owner() -> None:
    assert CgroupOwners(config()).owner("/system.slice/ssh.service") is None
    assert CgroupOwners(config()).owner("/") is None


def test_answers_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairsched.config.owners._REMEMBERED", 2)
    owners = CgroupOwners(config())
    for _ in range(2):
        for number in range(5):
            assert owners.owner(f"/system.slice/{number}") is None
            assert len(owners._known) <= 2


def test_a_plain_name_wins_over_a_pattern() -> None:
    text = "tenants: {t: {children: {'*': {weight: 3}, a: {weight: 5}}}}"
    owners = CgroupOwners(config(text))
    found = {part: owners.owner(f"/gpu.slice/t/{part}") for part in ("a", "b")}
    assert {part: owner and owner.spec.weight for part, owner in found.items()} == {"a": 5, "b": 3}


def test_a_long_cgroup_name_is_cut_to_a_unique_tenant_name() -> None:
    owners = CgroupOwners(config())
    one, two = (owners.owner(f"/gpu.slice/team/docker-{'a' * 63}{end}.scope") for end in "bc")
    assert one is not None
    assert two is not None
    assert one.tenant != two.tenant
    assert len(one.tenant) <= len("team/") + 64


def test_a_cgroup_name_that_cannot_be_printed_becomes_a_unique_one_that_can() -> None:
    owners = CgroupOwners(config())
    names = (b"\xff", b"\\xff", b"\xfe", b"\x1b[2J", b"\xff" * 255, b"\xff" * 254)
    found = [owners.owner(os.fsdecode(b"/gpu.slice/team/" + name)) for name in names]
    tenants = [owner.tenant for owner in found if owner is not None]
    assert len(set(tenants)) == len(names)
    assert all(name.isprintable() and len(name) <= len("team/") + 64 for name in tenants)
    assert tenants[0].startswith("team/\\xff~")
    assert found[0] is not None
    assert found[0].cgroup == os.fsdecode(b"/gpu.slice/team/\xff"), (
        "the kernel knows it by its own name alone"
    )


def test_an_override_wins_over_the_file_and_unset_gives_it_back() -> None:
    overrides = (
        Overrides().with_set("chat", {"weight": 9, "class": "batch"}).with_set("team/x", {"weight": 7})
    )
    specs = overrides.apply(config()).tenant_specs()
    assert (specs["chat"].weight, specs["team/x"].weight) == (9, 7)
    overrides = overrides.with_unset("chat", ["weight"])
    assert overrides.apply(config()).tenant_specs()["chat"].weight == 6
    assert overrides.with_unset("chat").with_unset("team/x") == Overrides()


def test_an_override_cannot_break_what_the_file_could_not() -> None:
    with pytest.raises(ConfigError, match="add up"):
        Overrides().with_set("chat", {"min": 0.8}).apply(config())
    with pytest.raises(ConfigError, match="more than 0"):
        Overrides().with_set("chat", {"weight": -1}).apply(config())


def test_an_override_of_a_tenant_that_left_the_file_is_kept_and_named() -> None:
    overrides = Overrides().with_set("gone", {"weight": 2})
    assert overrides.stale(config()) == ("gone",)
    assert overrides.apply(config()) == config()


def test_only_known_keys_of_known_tenants_can_be_set() -> None:
    check_set("team/x", {"weight": 2}, config())
    for tenant, values in (("nobody", {"weight": 1}), ("chat", {"cgroup": "x"}), ("chat", {})):
        with pytest.raises(ConfigError) as caught:
            check_set(tenant, values, config())
        assert caught.value.remedy


def test_overrides_survive_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "overrides.yaml"
    assert load_overrides(path) == Overrides()
    overrides = Overrides(
        {"chat": {"weight": 6.5, "exempt": True, "class": "batch", "quota": None}, "1e5": {"min": 0}}
    )
    save_overrides(path, overrides)
    assert load_overrides(path) == overrides
    assert os.listdir(tmp_path) == ["overrides.yaml"]
    save_overrides(path, Overrides())
    assert load_overrides(path) == Overrides()


def test_a_failed_write_leaves_the_old_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "overrides.yaml"
    save_overrides(path, Overrides({"chat": {"weight": 2}}))

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_overrides(path, Overrides({"chat": {"weight": 3}}))
    assert load_overrides(path).tenants == {"chat": {"weight": 2}}
    assert os.listdir(tmp_path) == ["overrides.yaml"]


@pytest.mark.parametrize(
    "text", ["", "[]", "version: 2\n", "version: 1\ntenants: [a]", "version: 1\ntenants: {a: {cgroup: x}}"]
)
def test_damaged_overrides_are_an_error_with_a_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "o.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_overrides(tmp_path / "o.yaml")
    assert caught.value.remedy


def test_every_value_knows_where_it_comes_from() -> None:
    text = "tick_ms: 50\ntenant_defaults: {class: batch}\ntenants: {chat: {weight: 6, min: 1%}}"
    found = {
        one.name: one.origin
        for one in list_settings(config(text), Overrides().with_set("chat", {"weight": 9}))
    }
    assert found["tick_ms"] == "file"
    assert found["inner_tick_ms"] == "default"
    assert found["tenants.chat.weight"] == "override"
    assert found["tenants.chat.min"] == "file"
    assert found["tenants.chat.class"] == "tenant_defaults"
    assert found["tenants.chat.quota"] == "default"


def test_what_is_shown_can_be_loaded_and_means_the_same() -> None:
    overrides = Overrides().with_set("chat", {"weight": 9, "quota": 0.5})
    shown = render(config(), overrides)
    again = from_bytes(shown.encode(), "shown")
    assert again.tenant_specs() == overrides.apply(config()).tenant_specs()
    assert "weight: 9  # override" in shown
    assert "tick_ms: 100  # default" in shown


def test_the_default_configuration_shows_and_loads() -> None:
    assert from_bytes(render(Config()).encode(), "shown").tenants == {}


def test_words_that_other_readers_take_for_booleans_are_quoted() -> None:
    assert 'ebpf: "off"' in render(config("mechanisms: {ebpf: off}"))


def test_a_reload_tells_what_it_changes() -> None:
    old = config("tick_ms: 100\ntenants: {chat: {weight: 4}, old: {}}")
    new = config("tick_ms: 50\nrun_dir: /run/x\ntenants: {chat: {weight: 6}, new: {weight: 2}}")
    assert [str(change) for change in diff(old, new)] == [
        "tenants.old removed",
        "tenants.new added weight 2",
        "tick_ms 100 -> 50",
        "run_dir /run/fairsched -> /run/x (takes effect at the next start)",
        "tenants.chat.weight 4 -> 6",
    ]
    assert diff(old, old) == []


def test_the_json_schema_names_the_keys_of_the_file() -> None:
    found = json.loads(json.dumps(schema()))
    assert found["additionalProperties"] is False
    assert set(found["properties"]) >= {"mode", "tenants", "tick_ms"}
    assert "class" in found["$defs"]["Tenant"]["properties"]


def test_the_whole_example_is_valid_also_what_is_commented_out() -> None:
    lines = (ROOT / "packaging/config.example.yaml").read_text(encoding="utf-8").splitlines()
    start = lines.index("  # lab:")
    unhidden = [
        line.replace("# ", "", 1)
        if index >= start and re.match(r"  # .*:|# ( |guard:|reclaim:)", line)
        else line
        for index, line in enumerate(lines)
    ]
    found = from_bytes("\n".join(unhidden).encode(), "example")
    assert set(found.tenants) == {"chat", "batch", "lab", "web", "research", "monitoring"}
    assert found.tenants["lab"].children
    assert {rule.name for rule in found.reclaim.rogue_rules()} == {*KINDS, "our-miners"} - {"orphan"}
    assert found.reclaim.allow.cgroups == ("/gpu.slice/chat",)


def test_the_reference_is_up_to_date() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert text == reference(), "run: python -m fairsched.config.reference > docs/configuration.md"


def test_the_example_in_the_reference_is_valid() -> None:
    example = reference().split("```yaml\n")[1].split("```")[0]
    assert set(config(example).tenants) == {"chat", "batch"}
