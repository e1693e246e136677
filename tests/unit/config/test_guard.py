# SPDX-License-Identifier: Apache-2.0
"""The section ``guard`` makes bounds, and names the key of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.config import Config, InvalidConfig, from_bytes
from fairsched.config.guard import notes
from fairsched.config.views import render
from fairsched.guard.breach import Act, Per, What
from fairsched.guard.rules import Bound

FULL = """
guard:
  zone: Europe/Berlin
  interval: 5s
  projects: {vision: {tenants: [batch], users: [alice, 1003]}}
  limits:
    everybody: {vram: 20GiB, contexts: 4, gpu_seconds_per_day: 20h, hard: end, soft: hold, grace: 1m}
    alice: {of: [alice, 1003], vram: 40GiB, each_gpu: true, gpus: [0, GPU-5f2c]}
    day: {per: tenant, hours: ["mon-fri 08:00-18:00"], allowed_gpus: [0, 1], zone: UTC}
  maintenance: {xmas: {from: "2026-12-24 18:00", until: "2026-12-27 08:00", hard: end, warn_before: 1h}}
"""


def config(text: str) -> Config:
    return from_bytes(text.encode(), "f.yaml")


def bounds(text: str) -> dict[tuple[str, What], Bound]:
    return {(one.limit, one.what): one for one in config(text).guard.rules().bounds}


def test_without_a_word_nothing_is_limited_and_nothing_is_done() -> None:
    guard = from_bytes(b"mode: observe", "f").guard
    assert (guard.mode, guard.rules().bounds) == ("dry_run", ())


def test_each_key_of_a_limit_is_a_bound_of_its_own() -> None:
    found = bounds(FULL)
    assert len(found) == 7
    vram = found["everybody", What.VRAM]
    assert (vram.amount, vram.per, vram.of, vram.soft, vram.is_hard) == (
        20 << 30,
        Per.USER,
        None,
        Act.HOLD,
        True,
    )
    assert (vram.grace_s, vram.every_s, vram.warnings) == (60.0, 300.0, 3)
    assert found["everybody", What.GPU_SECONDS].amount == 72_000
    assert str(found["everybody", What.GPU_SECONDS].zone) == "Europe/Berlin"
    alice = found["alice", What.VRAM]
    assert (alice.of, alice.gpus, alice.each_gpu) == (frozenset({"alice", "1003"}), ("0", "GPU-5f2c"), True)
    assert found["day", What.GPUS].allowed_gpus == ("0", "1")
    assert str(found["day", What.HOURS].zone) == "UTC"
    xmas = found["xmas", What.MAINTENANCE]
    assert xmas.maintenance is not None and xmas.maintenance.begin_s == 1798131600  # 17:00 UTC
    assert (xmas.is_hard, xmas.warn_before_s, xmas.grace_s) == (True, 3600, 3600)


def test_what_is_shown_is_read_back_as_it_was() -> None:
    assert config(render(config(FULL))).guard == config(FULL).guard


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ("{zone: Mars/One}", "guard.zone", "not a time zone"),
        ("{projects: {x: {}}}", "guard.projects.x", "nobody"),
        ("{limits: {a: {per: user}}}", "guard.limits.a", "limits nothing"),
        ("{limits: {a: {hours: []}}}", "guard.limits.a.hours", "never be open"),
        ("{limits: {a: {hours: ['08:00-08:00']}}}", "guard.limits.a.hours", "never opens"),
        ("{limits: {a: {hours: ['8-18']}}}", "guard.limits.a.hours", "no hours"),
        ("{limits: {a: {vram: 1GiB, zone: No/Where}}}", "guard.limits.a.zone", "not a time zone"),
        ("{limits: {a: {vram: 1GiB, force: true}}}", "guard.limits.a.force", "nobody is ended"),
        ("{limits: {a: {allowed_gpus: [0], each_gpu: true}}}", "guard.limits.a.each_gpu", "no amount"),
        ("{limits: {a: {per: gpu, allowed_gpus: [0]}}}", "guard.limits.a.allowed_gpus", "no other GPU"),
        ("{limits: {a: {per: gpu, of: [zero], vram: 1}}}", "guard.limits.a.of[0]", "not a GPU"),
        (
            "{limits: {a: {per: gpu, gpu_seconds_per_day: 1h, hard: end}}}",
            "guard.limits.a.hard",
            "cannot be told",
        ),
        ("{limits: {a: {gpus: [zero], vram: 1}}}", "guard.limits.a.gpus", "not a GPU"),
        ("{limits: {a: {of: ['*'], vram: 1}}}", "guard.limits.a.of", "leave the key out"),
        ("{limits: {a: {vram: 1, every: 5 minutes}}}", "guard.limits.a.every", "not a duration"),
        ("{limits: {a: {vrma: 1}}}", "guard.limits.a.vrma", "unknown key"),
        ("{interval: 2m}", "guard.interval", "60 or less"),
        ("{maintenance: {m: {from: '2026-12-24 18:00', until: x}}}", "guard.maintenance.m", "not a date"),
        (
            "{maintenance: {m: {from: '2026-12-24 18:00', until: '2026-12-24 18:00'}}}",
            "guard.maintenance.m",
            "it ends at",
        ),
        ("{allow: {cgroups: [/]}}", "guard.allow.cgroups", "not that of all"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_a_remedy(text: str, key: str, word: str) -> None:
    with pytest.raises(InvalidConfig, match=word) as caught:
        config(f"guard: {text}")
    assert caught.value.key == key
    assert all(problem.remedy for problem in caught.value.problems)


def test_a_key_that_is_misspelt_is_guessed() -> None:
    with pytest.raises(InvalidConfig) as caught:
        config("guard: {limits: {a: {vrma: 1}}}")
    assert "did you mean 'vram'" in caught.value.remedy


def test_names_that_are_nobodys_are_noted_and_no_error() -> None:
    text = (
        "guard: {limits: {a: {of: [bob, 7], vram: 1}, b: {per: tenant, of: [chat, chat/x, no], vram: 1}, "
        "c: {per: project, of: [p, q], vram: 1}, d: {per: group, of: [staff], vram: 1}}, "
        "projects: {p: {tenants: [gone], users: [eve]}}}"
    )
    guard = config(text).guard
    found = "\n".join(notes(guard, ["chat"], {"alice"}.__contains__, {"staff"}.__contains__))
    assert [line.rpartition(": there is no ")[2].split(":")[0] for line in found.splitlines()] == [
        "user bob",
        "tenant no",
        "project q",
        "tenant gone",
        "user eve",
    ]


def test_the_least_memory_that_names_a_tenant_is_what_the_kernel_may_refuse() -> None:
    text = (
        "guard: {limits: {a: {per: tenant, of: [chat, lab], vram: 2GiB, each_gpu: true, hard: end}, "
        "b: {per: tenant, of: [chat], vram: 1GiB, each_gpu: true, hard: end}, "
        "soft: {per: tenant, of: [lab], vram: 1, each_gpu: true}, sum: {per: tenant, of: [lab], vram: 1, hard: end}, "
        "one: {per: tenant, of: [lab], vram: 1, each_gpu: true, gpus: [0], hard: end}}}"
    )
    assert config(text).guard.rules().tenant_vram() == {"chat": 1 << 30, "lab": 2 << 30}


def test_the_commented_guard_of_the_example_is_valid() -> None:
    root = Path(__file__).parents[3]
    text = (root / "packaging/config.example.yaml").read_text(encoding="utf-8")
    part = text[text.index("# guard:") :].split("\n\n")[0]
    guard = config("\n".join(line.removeprefix("# ") for line in part.splitlines())).guard
    assert guard.limits and guard.mode == "dry_run"
