# SPDX-License-Identifier: Apache-2.0
"""A configuration is valid, or an error says file, line, key and remedy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fairsched.config import Config, InvalidConfig, from_bytes, load
from fairsched.errors import ConfigError
from fairsched.model import TenantClass


def config(text: str) -> Config:
    return from_bytes(text.encode(), "f.yaml")


def problem(text: str) -> Any:
    with pytest.raises(InvalidConfig) as caught:
        config(text)
    assert caught.value.exit_status == 2
    for found in caught.value.problems:
        assert found.remedy
        assert "\n" not in found.message
    return caught.value.problems[0]


def test_no_file_means_defaults_that_hold_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fairsched.config.loader.DEFAULT_PATH", tmp_path / "none.yaml")
    assert load().mode == "observe"
    assert load().tenants == {}


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        load(tmp_path / "none.yaml")
    assert caught.value.exit_status == 2


def test_a_fifo_does_not_hang_a_reload(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError):
        load(tmp_path / "fifo")


def test_a_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load(tmp_path)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null\n"])
def test_an_empty_file_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="empty"):
        config(text)


@pytest.mark.parametrize("text", ["[]", "tenants", "5", "- a\n- b"])
def test_a_file_that_is_not_a_mapping_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="not a mapping"):
        config(text)


def test_an_empty_tenant_has_the_defaults() -> None:
    spec = config("tenants:\n  chat:\n").tenant_specs()["chat"]
    assert (spec.weight, spec.quota_ratio, spec.min_ratio) == (1.0, None, 0.0)
    assert config("tenants:\n").tenants == {}


def test_tenant_defaults_reach_the_tenants_that_say_nothing() -> None:
    specs = config(
        "tenant_defaults: {weight: 3, class: batch, max_freeze_ms: 100}\ntenants: {a: {}, b: {weight: 2}}"
    ).tenant_specs()
    assert (specs["a"].weight, specs["b"].weight) == (3, 2)
    assert specs["b"].tenant_class is TenantClass.BATCH
    assert specs["a"].max_freeze_ns == 100_000_000


@pytest.mark.parametrize(("text", "ratio"), [("30%", 0.3), ("0.3", 0.3), ("'12.5 %'", 0.125), ("1", 1.0)])
def test_a_ratio_is_a_number_or_a_percentage(text: str, ratio: float) -> None:
    assert config(f"tenants: {{a: {{quota: {text}}}}}").tenant_specs()["a"].quota_ratio == pytest.approx(
        ratio
    )


def test_the_window_reaches_the_control_law_in_its_unit() -> None:
    assert config("window_s: 10").policy_params().window_ns == 10_000_000_000


@pytest.mark.parametrize(
    ("text", "key", "line", "says"),
    [
        ("tick_ms: fast", "tick_ms", 1, "whole number"),
        ("tick_ms: 1.5", "tick_ms", 1, "whole number"),
        ("tick_ms: true", "tick_ms", 1, "whole number"),
        ("tick_ms: 5", "tick_ms", 1, "10 or more"),
        ("a: 1\ntick_ms: 100", "a", 1, "unknown key"),
        ("tenants:\n  chat:\n    wieght: 4", "tenants.chat.wieght", 3, "unknown key"),
        ("tenants:\n  chat:\n    weight: -1", "tenants.chat.weight", 3, "more than 0"),
        ("tenants:\n  chat:\n    weight: 0", "tenants.chat.weight", 3, "more than 0"),
        ("tenants: {chat: {weight: '4'}}", "tenants.chat.weight", 1, "number"),
        ("tenants: {chat: {weight: .inf}}", "tenants.chat.weight", 1, "number"),
        ("tenants: {chat: {quota: 130%}}", "tenants.chat.quota", 1, "1 or less"),
        ("tenants: {chat: {quota: lots}}", "tenants.chat.quota", 1, "number"),
        ("tenants: {chat: {exempt: yes}}", "tenants.chat.exempt", 1, "true or false"),
        ("tenants: {chat: {class: fast}}", "tenants.chat.class", 1, "'latency' or 'batch'"),
        ("tenants: {Chat: {}}", "tenants.Chat", 1, "not a tenant name"),
        ("tenants: {..: {}}", "tenants...", 1, "not a tenant name"),
        ("tenants: {a/b: {}}", "tenants.a/b", 1, "not a tenant name"),
        ("tenants: {chat: 4}", "tenants.chat", 1, "mapping"),
        ("tenants: [chat]", "tenants", 1, "mapping"),
        ("tenants: {a: {cgroup: /}}", "tenants.a.cgroup", 1, "root cgroup"),
        ("tenants: {a: {cgroup: []}}", "tenants.a.cgroup", 1, "at least one"),
        ("tenants: {a: {cgroup: [4]}}", "tenants.a.cgroup[0]", 1, "word"),
        ("tenants: {a: {cgroup: ../x}}", "tenants.a.cgroup", 1, "component"),
        ("state_dir: var/lib", "state_dir", 1, "absolute"),
        ("mechanisms: {ebpf: perhaps}", "mechanisms.ebpf", 1, "'off', 'auto' or 'required'"),
        ("gpu:\n  source: cupti", "gpu.source", 2, "'auto', 'ebpf', 'trace', 'dcgm' or 'nvml'"),
        ("gpu: {source: dcgm, dcgm: off}", "gpu.dcgm", 1, "it is off"),
        ("gpu: {source: dcgm}\nmechanisms: {nvml: off}", "mechanisms.nvml", 2, "samples of NVML"),
        ("gpu: {dcgm: required}\nmechanisms: {nvml: off}", "mechanisms.nvml", 2, "samples of NVML"),
        ("gpu: {dcgm: off, dcgm_address: embedded}", "gpu.dcgm_address", 1, "gpu.dcgm is off"),
        (
            "gpu: {dcgm: off, dcgm_exporter: 'http://h:9400/metrics'}",
            "gpu.dcgm_exporter",
            1,
            "gpu.dcgm is off",
        ),
        ("gpu: {dcgm_exporter: 'file:///metrics'}", "gpu.dcgm_exporter", 1, "http://"),
        ("gpu: {dcgm_address: 'no host'}", "gpu.dcgm_address", 1, "HOST:PORT"),
        ("gpu: {dcgm_address: 'h:0'}", "gpu.dcgm_address", 1, "HOST:PORT"),
        ("gpu: {dcgm_address: 'h:65536'}", "gpu.dcgm_address", 1, "HOST:PORT"),
        (f"gpu: {{dcgm_address: /{'x' * 107}}}", "gpu.dcgm_address", 1, "at most 107"),
        ("tick_ms: 20\ninner_tick_ms: 50", "inner_tick_ms", 2, "longer than tick_ms"),
        ("mode: enforce\nmechanisms: {freezer: off}", "mechanisms.freezer", 2, "cannot work"),
        ("mode: enforce\nmechanisms: {brake: none}", "mechanisms.brake", 2, "without a brake"),
        ("mechanisms: {brake: freezer, freezer: off}", "mechanisms.brake", 1, "freezer is off"),
        ("mechanisms: {brake: sigstop, freezer: required}", "mechanisms.brake", 1, "freezer is required"),
        ("mechanisms: {brake: hand}", "mechanisms.brake", 1, "sigstop"),
        ("gpu: {source: ebpf}\nmechanisms: {ebpf: off}", "mechanisms.ebpf", 2, "gpu.source"),
        ("tenants:\n  a: {min: 60%}\n  b: {min: 0.5}", "tenants", 1, "add up to 1.1"),
        ("tenants: {a: {min: 40%, quota: 30%}}", "tenants.a.min", 1, "more than quota"),
        (
            "tenants:\n  a:\n    cgroup: g/b\n  b:\n    cgroup: g/*",
            "tenants.b.cgroup[0]",
            5,
            "both claim g/b",
        ),
        ("tenants: {a: {cgroup: g}, b: {cgroup: g/x}}", "tenants.b.cgroup[0]", 1, "both claim g/x"),
        ("tenants: {a: {}, b: {cgroup: '*/a'}}", "tenants.b.cgroup", 1, "gpu.slice/a"),
        ("tenants: {a: {children: {'x*': {}, '*y': {}}}}", "tenants.a.children.*y", 1, "called 'xy'"),
        ("tenants: {a: {min: 10%, children: {x: {min: 20%}}}}", "tenants.a.children", 1, "their parent 0.1"),
        ("tenants: {a: {children: {'x*': {min: 1%}}}}", "tenants.a.children.x*.min", 1, "any number"),
        ("tenants: {a: {children: {x/y: {}}}}", "tenants.a.children.x/y", 1, "without '/'"),
    ],
)
def test_what_is_wrong_is_named_with_key_and_line(text: str, key: str, line: int, says: str) -> None:
    found = problem(text)
    assert says in found.message
    assert found.line == line
    assert found.key.removesuffix("[0]") == key.removesuffix("[0]")


def test_a_typo_gets_a_suggestion() -> None:
    assert problem("tenants: {chat: {wieght: 4}}").remedy == "did you mean 'weight'?"
    assert problem("tick: 100").remedy == "did you mean 'tick_ms'?"


def test_an_overlap_names_both_tenants_and_both_ways_out() -> None:
    found = problem("tenants: {chat: {cgroup: g}, train: {cgroup: g/x}}")
    assert found.message == "'g/x' overlaps with 'g' of tenant 'chat': both claim g/x"
    assert found.remedy == "a cgroup has one owner: make the patterns disjoint, or use children"


def test_all_problems_are_reported_not_only_the_first() -> None:
    with pytest.raises(InvalidConfig) as caught:
        config("tick_ms: x\nwindow_s: 99\nfoo: 1")
    assert [found.key for found in caught.value.problems] == ["tick_ms", "window_s", "foo"]
    assert "(and 2 more)" in str(caught.value)


def test_ten_guarantees_of_ten_percent_fit() -> None:
    config("tenants: {" + ", ".join(f"t{n}: {{min: 10%}}" for n in range(10)) + "}")


def test_more_than_a_thousand_tenants_is_an_error() -> None:
    assert "1024" in problem("tenants: {" + ", ".join(f"t{n}: {{}}" for n in range(1025)) + "}").message


def test_one_tenant_may_repeat_itself() -> None:
    config("tenants: {a: {cgroup: [g/a, g/a/b]}}")


WORDS = (
    "mode tick_ms tenants gpu control log weight class quota min cgroup children a b mechanisms ebpf",
    "state_dir metrics listen x* ** *",
)
KEYS = st.sampled_from(" ".join(WORDS).split())
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["off", "enforce", "30%", "/", "/a", "a/*", "*", "**", "batch"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(("size", "says"), [(2_345_678, "has 2345678 bytes, more"), (None, "has more bytes")])
def test_the_size_of_a_file_that_is_too_large_is_its_own(tmp_path: Path, size: int | None, says: str) -> None:
    path = Path("/dev/zero")
    if size is not None:
        path = tmp_path / "f.yaml"
        path.write_bytes(b"x" * size)
    with pytest.raises(ConfigError, match=f"{says} than the 1000000 allowed"):
        load(path)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
@hypothesis.settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_yaml_gives_a_config_or_a_config_error(data: dict[str, Any]) -> None:
    raw = yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass")
    try:
        found = from_bytes(raw, "f")
    except ConfigError as error:
        assert error.exit_status == 2
        assert error.file.startswith("f")
    else:
        assert isinstance(found, Config)


def test_what_is_done_about_misbehaviour_is_inherited_from_tenant_defaults_alone() -> None:
    made = config(
        "misbehaviour: {endless_s: 7, grace_s: 0}\ntenant_defaults: {on_misbehaviour: terminate}\n"
        "tenants: {a: {}, b: {on_misbehaviour: warn, children: {c: {}}}}"
    )
    assert (made.misbehaviour.endless_s, made.misbehaviour.grace_s) == (7, 0)
    found = {name: spec.on_misbehaviour.value for name, spec in made.tenant_specs().items()}
    assert found == {"a": "terminate", "b": "warn", "b/c": "terminate"}
    assert Config().spec("x", None).on_misbehaviour.value == "warn", (
        "nobody is ended unless a person asks for it"
    )


def test_a_vram_limit_is_a_size_and_not_inherited_by_children() -> None:
    made = config(
        "tenant_defaults: {vram_limit: 8GiB, on_vram_limit: hold}\n"
        "tenants: {a: {children: {c: {}, d: {vram_limit: 512 MB}}}, b: {vram_limit: 1000, on_vram_limit: terminate}}"
    )
    found = {
        name: (spec.vram_limit_bytes, spec.on_vram_limit.value) for name, spec in made.tenant_specs().items()
    }
    assert found == {
        "a": (8 * 2**30, "hold"),
        "a/c": (None, "hold"),
        "a/d": (512_000_000, "hold"),
        "b": (1000, "terminate"),
    }
    assert Config().spec("x", None).vram_limit_bytes is None


@pytest.mark.parametrize("text", ["8 bananas", "-1", "0", "1.5.2GiB", "GiB", "true", "9999999TiB"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="vram_limit"):
        config(f"tenants: {{a: {{vram_limit: {text}}}}}")


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "10.0.0.7:5555",
        "node-1.example:1",
        "/run/nv-hostengine",
        "unix:///run/nv-hostengine",
        "embedded",
    ],
)
def test_a_host_engine_has_an_address_of_one_of_these_forms(address: str) -> None:
    assert config(f"gpu: {{dcgm_address: '{address}'}}").gpu.dcgm_address == address


def test_dcgm_is_asked_where_it_helps_unless_somebody_says_otherwise() -> None:
    gpu = config("mode: observe").gpu
    assert (gpu.dcgm, gpu.dcgm_address, gpu.dcgm_exporter) == ("auto", None, None)


@pytest.mark.parametrize(
    ("section", "path", "remedy"),
    [
        ("tenants: {{a: {{cgroup: {path}}}}}", "/sys/fs/cgroup/gpu.slice/a", "gpu.slice/a"),
        ("tenants: {{a: {{cgroup: [b, '{path}']}}}}", "/sys/fs/cgroup/unified/gpu.slice/a*", "gpu.slice/a*"),
        ("tenants: {{a: {{cgroup: {path}}}}}", "sys/fs/cgroup/", "gpu.slice/NAME"),
        ("devices: {{under: {path}}}", "/sys/fs/cgroup/kubepods", "kubepods"),
    ],
)
def test_a_path_of_the_file_system_is_no_cgroup_and_the_remedy_is_the_cgroup(
    section: str, path: str, remedy: str
) -> None:
    """It would match nothing, and its tenant would be away for ever."""
    found = problem(section.format(path=path))
    assert found.message == f"'{path}' begins with where cgroups are mounted"
    assert found.remedy == f"write what /proc/PID/cgroup shows: {remedy}"
