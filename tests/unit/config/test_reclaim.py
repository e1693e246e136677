# SPDX-License-Identifier: Apache-2.0
"""The section ``reclaim`` makes the rules in force, and names the key of what is wrong."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from fairsched.config import Config, InvalidConfig, from_bytes
from fairsched.config.reclaim import RuleKind
from fairsched.config.views import list_settings
from fairsched.guard.rogue import BUILT_IN
from fairsched.guard.thresholds import KINDS, Age, IdleHoarder, Miner

DIGEST = f"sha256:{'0f' * 32}"


def config(text: str) -> Config:
    return from_bytes(f"reclaim: {text}".encode(), "f.yaml")


def rules(text: str) -> dict[str, Any]:
    return {rule.name: rule.thresholds for rule in config(text).reclaim.rogue_rules()}


def test_without_a_word_the_built_in_rules_are_in_force() -> None:
    assert from_bytes(b"mode: observe", "f").reclaim.rogue_rules() == BUILT_IN
    assert config("").reclaim.rogue_rules() == BUILT_IN
    assert set(get_args(RuleKind)) == set(KINDS)


def test_a_rule_takes_the_place_of_its_kind_stands_beside_it_or_is_off() -> None:
    found = rules("{rules: {age: {for_s: 60}, old: {kind: age, score: 50%}, orphan: {score: 0}}}")
    assert found["age"] == Age(for_s=60)
    assert found["old"] == Age(score=0.5)
    assert "orphan" not in found
    assert len(found) == len(KINDS)


def test_part_of_a_match_is_never_worth_more_than_the_whole() -> None:
    found = rules("{rules: {idle_hoarder: {score: 0.3, vram: 4GiB}, miner: {vram: 1GiB, ports: [3333]}}}")
    assert found["idle_hoarder"] == IdleHoarder(score=0.3, idle_score=0.3, vram_bytes=4 << 30)
    assert found["miner"] == Miner(vram_bytes=1 << 30, ports=(3333,))


def test_whom_none_may_accuse() -> None:
    text = (
        f"{{allow: {{cgroups: [/gpu.slice/chat], units: [a.service], images: ['{DIGEST}']}}, min_score: 80%}}"
    )
    reclaim = config(text).reclaim
    assert (reclaim.allowed().cgroups, reclaim.allowed().units) == (("/gpu.slice/chat",), ("a.service",))
    assert (reclaim.allowed().images, reclaim.allowed().programs) == ((DIGEST,), ())
    assert reclaim.min_score == 0.8


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ("{rules: {x: {for_s: 3}}}", "reclaim.rules.x", "no kind"),
        ("{rules: {age: {ports: [3333]}}}", "reclaim.rules.age.ports", "no such key"),
        ("{rules: {unknown_image: {for_s: 3}}}", "reclaim.rules.unknown_image.for_s", "no such key"),
        ("{rules: {age: {for_s: x}}}", "reclaim.rules.age.for_s", "whole number"),
        ("{rules: {age: {fors: 3}}}", "reclaim.rules.age.fors", "unknown key"),
        ("{rules: {miner: {ports: [443]}}}", "reclaim.rules.miner.ports[0]", "1024"),
        ("{rules: {miner: {words: ['(']}}}", "reclaim.rules.miner.words", "regular expression"),
        ("{rules: {miner: {words: ['a*']}}}", "reclaim.rules.miner.words", "every command"),
        ("{rules: {unknown_image: {known: ['a:latest']}}}", "reclaim.rules.unknown_image.known", "digest"),
        ("{allow: {programs: [python]}}", "reclaim.allow.programs", "digest"),
        ("{allow: {images: 'sha256:0f'}}", "reclaim.allow.images", "list"),
        ("{allow: {cgroups: [/]}}", "reclaim.allow.cgroups", "not that of all"),
        ("{allow: {cgroups: [/gpu.slice/*]}}", "reclaim.allow.cgroups", "whole path"),
        ("{allow: {cgroups: [gpu.slice]}}", "reclaim.allow.cgroups", "not a cgroup"),
        ("{allow: {units: ['chat']}}", "reclaim.allow.units", "whole name"),
        ("{allow: {names: [python]}}", "reclaim.allow.names", "unknown key"),
        ("{min_score: 2}", "reclaim.min_score", "1 or less"),
    ],
)
def test_what_is_wrong_is_named(text: str, key: str, word: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        config(text)
    (problem,) = caught.value.problems
    assert (problem.key, problem.line) == (key, 1)
    assert word in problem.message
    assert problem.remedy


def test_a_misspelt_key_of_a_rule_is_guessed() -> None:
    with pytest.raises(InvalidConfig) as caught:
        config("{rules: {age: {fors: 3}}}")
    assert "for_s" in caught.value.problems[0].remedy


def test_rules_are_shown() -> None:
    shown = {
        str(one.key[-1]): one
        for one in list_settings(config("{rules: {age: {for_s: 60}}}"))
        if one.key[0] == "reclaim"
    }
    assert shown["rules"].value == {"age": {"for_s": 60}}
    assert (shown["rules"].origin, shown["min_score"].origin) == ("file", "default")
