# SPDX-License-Identifier: Apache-2.0
"""What ``fairsched audit show`` makes of the entries of an assistant: who asked is a claim, and steers no terminal."""

from __future__ import annotations

from typing import Any

from fairsched.cli.audit_text import render

CALLER = {"via": "mcp", "transport": "stdio", "claims_client": "\x1b[2Jroot " + "x" * 200, "plan": "ab" * 8}
WHO = {"uid": 0, "user": "root", "login": "alice"}


def entry(event: str, **more: Any) -> dict[str, Any]:
    return {"seq": 4, "time": "2026-11-27T02:29:59.653Z", "event": event, "who": WHO, **CALLER, **more}


def test_a_plan_says_who_asked_and_whom_it_would_end() -> None:
    lines = render([entry("plan", asked="gpu=3", why="leak", targets=[{"pid": 7, "start_ticks": 1}])])
    text = "\n".join(lines)
    assert "plan by root (alice), via mcp" in text
    assert "asked gpu=3, because: leak" in text
    assert "would end 7" in text
    assert "\x1b" not in text and all(len(line) <= 80 for line in lines)


def test_a_refused_confirmation_says_which_and_why() -> None:
    lines = render([entry("refused", code="unknown_plan", pids=[7, 8])])
    assert "refused by root (alice), via mcp" in lines[0]
    assert "to end 7, 8: unknown_plan" in lines[-1]


def test_what_a_person_asked_is_via_nobody() -> None:
    mine = {key: value for key, value in entry("reclaim", asked="pid=7").items() if key not in CALLER}
    assert render([mine])[0] == "4 2026-11-27T02:29:59.653Z reclaim by root (alice)"


def test_entries_of_the_guard_say_what_was_done_and_why() -> None:
    text = "user eve\x1b[2J has 30.0 GiB"
    entries = [
        {"seq": 7, "time": "T", "event": "guard", "did": "warned", "limit": "people", "text": text},
        {
            "seq": 8,
            "time": "T",
            "event": "guard",
            "did": "lower",
            "key": "quota",
            "tenant": "chat",
            "set": 0.05,
        }
        | {"before": None, "limit": "people", "text": "why"},
        {"seq": 9, "time": "T", "event": "guard", "did": "gave back", "key": "quota", "tenant": "chat"}
        | {"now": 0.5, "text": "it is under its limit again"},
        {"seq": 10, "time": "T", "event": "guard", "did": "would end", "limit": "people", "text": text}
        | {"detail": "would end 100 (python)"},
    ]
    assert render(entries) == [
        "7 T guard: warned (people)",
        "  user eve\\x1b[2J has 30.0 GiB",
        "8 T guard: lower quota of chat from not set to 0.05 (people)",
        "  why",
        "9 T guard: gave back quota of chat, now 0.5",
        "  it is under its limit again",
        "10 T guard: would end (people)",
        "  user eve\\x1b[2J has 30.0 GiB",
        "  would end 100 (python)",
    ]
