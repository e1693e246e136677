# SPDX-License-Identifier: Apache-2.0
"""docs/symptoms.md has every line of the log, warning, word of the status and alert that there is, and no other."""

from __future__ import annotations

import ast
import re

import pytest

from fairsched.daemon import tenants
from fairsched.model import MisbehaviourKind
from fairsched.protocol.status import TenantState
from tests.unit.prometheus.shipped import alerts
from tests.unit.repo.said import daemon_files, log_lines, shape, tree_of, warnings
from tests.unit.repo.tree import ROOT

TEXT = (ROOT / "docs/symptoms.md").read_text(encoding="utf-8")
NOTES = (tenants.CONTEXTS_ONLY, tenants.UNPROVEN, tenants.NOT_LEARNT)
SHORTEST = 6
"""Of a fragment: less would be found in anything."""
_BULLET = re.compile(r"^\* (`[^`\n]+`(?:,\s+`[^`\n]+`)*):\s", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")


def section(title: str) -> str:
    """The text below a heading of the second level."""
    return TEXT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def fragments(title: str) -> list[str]:
    """What stands in code before the colon of each bullet."""
    found = []
    for bullet in _BULLET.findall(section(title)):
        found += _SPAN.findall(bullet)
    return found


def bullets(title: str) -> int:
    return len(re.findall(r"^\* ", section(title), re.MULTILINE))


LOG, WARNINGS, WORDS = (
    fragments(title) for title in ("Lines of the log", "Warnings of status", "Words of status")
)


def unknown(said: list[tuple[str, str]], index: list[str]) -> list[str]:
    return [f"{where}: {text}" for where, text in said if not any(one in text for one in index)]


def unsaid(said: list[tuple[str, str]], index: list[str]) -> list[str]:
    return [one for one in index if not any(one in text for _, text in said)]


def test_every_line_of_the_log_stands_whole_in_the_code() -> None:
    """A text that is put together elsewhere would be in no index."""
    assert [where for where, text in log_lines() if text is None] == []


def test_every_line_of_the_log_is_in_the_index_and_no_other() -> None:
    said = [(where, text) for where, text in log_lines() if text is not None]
    assert len(said) > 100
    assert unknown(said, LOG) == [], "not in docs/symptoms.md, Lines of the log"
    assert unsaid(said, LOG) == [], "in docs/symptoms.md, and nobody says it"


def test_every_warning_of_the_status_is_in_the_index_and_no_other() -> None:
    said = list(warnings())
    assert len(said) > 30
    assert unknown(said, WARNINGS) == [], "not in docs/symptoms.md, Warnings of status"
    assert unsaid(said, WARNINGS) == [], "in docs/symptoms.md, and nobody says it"


def test_every_word_and_note_of_the_status_is_in_the_index_and_no_other() -> None:
    words = {one.value for one in (*TenantState, *MisbehaviourKind)}
    assert words - set(WORDS) == set()
    notes = [one for one in WORDS if one not in words]
    assert [note for note in NOTES if not any(one in note for one in notes)] == []
    assert [one for one in notes if not any(one in note for note in NOTES)] == []


def test_the_notes_of_the_status_are_those_that_the_index_is_compared_with() -> None:
    texts = {
        shape(node.value)
        for node in tree_of("fairsched/daemon/tenants.py").body
        if isinstance(node, ast.Assign) and " " in (shape(node.value) or "")
    }
    assert texts == set(NOTES)


def test_every_alert_is_in_the_index_and_no_other() -> None:
    linked = re.findall(r"\[(\w+)\]\(runbooks\.md#(\w+)\)", section("Alerts"))
    assert sorted(name for name, _ in linked) == sorted(alerts())
    assert [name for name, anchor in linked if anchor != name.lower()] == []


@pytest.mark.parametrize("title", ["Lines of the log", "Warnings of status", "Words of status"])
def test_every_bullet_begins_with_the_words_to_look_for(title: str) -> None:
    assert len(_BULLET.findall(section(title))) == bullets(title)
    assert [one for one in fragments(title) if title != "Words of status" and len(one) < SHORTEST] == []
    assert len(fragments(title)) == len(set(fragments(title)))


def test_the_warnings_come_from_the_functions_that_the_index_is_compared_with() -> None:
    """A new source of warnings is to be named in tests/unit/repo/said.py."""
    parts = {
        "fairsched/daemon/report.py": {
            "*_warnings(vitals, settings, sensors)",
            "*_contradictions(parts)",
            "*_unseen_warnings(parts.misbehaviour.unseen)",
            "*_crowd_warnings(parts.tree.crowded)",
            "*_gate_warnings(settings, gate)",
        },
        "fairsched/daemon/answers.py": {"*report.warnings", "*unguarded", "*said.faults"},
    }
    for file, known in parts.items():
        found = {
            ast.unparse(part)
            for node in ast.walk(tree_of(file))
            if isinstance(node, ast.keyword) and node.arg == "warnings" and isinstance(node.value, ast.Tuple)
            for part in node.value.elts
        }
        assert found == known, file


def test_the_faults_of_the_companion_come_from_the_parts_that_are_known() -> None:
    made = {
        str(path)
        for path in daemon_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "Finding"
        and any(one.arg == "faults" and ast.unparse(one.value) != "[]" for one in node.keywords)
    }
    assert made == {
        "fairsched/companion/__main__.py",  # what broke in a part, with its name: in the log as well
        "fairsched/companion/dra/part.py",
        "fairsched/companion/escalate/part.py",
        "fairsched/companion/guard/part.py",
        "fairsched/companion/history/part.py",
        "fairsched/companion/pods/part.py",
    }
