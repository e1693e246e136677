# SPDX-License-Identifier: Apache-2.0
"""docs/scenarios.md says what the schema says, and its example is a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fair import reference_page
from benchmarks.fair.controllers import POLICIES
from benchmarks.fair.reference_page import PAGE, SECTIONS, kind, page
from benchmarks.fair.scenario import Arrival, Gpu, Load, Scenario, Tenant, load, shipped
from benchmarks.tricks import TRICKS
from tests.unit.repo.tree import ROOT


def test_the_page_is_up_to_date() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text == page(), "run: python -m benchmarks.fair.reference_page --write"


def test_every_key_of_every_section_has_a_line_with_a_meaning() -> None:
    text = page()
    for title, model in SECTIONS:
        section = text.split(f"\n### {title}\n")[1].split("\n#")[0]
        lines = {
            line.split("|")[1].strip(" `"): line for line in section.splitlines() if line.startswith("| `")
        }
        assert set(lines) == {field.alias or name for name, field in model.model_fields.items()}
        for line in lines.values():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 4 and cells[1] and cells[3], line


def test_every_section_of_the_schema_is_on_the_page() -> None:
    assert {model for _, model in SECTIONS} == {Scenario, Gpu, Tenant, Load, Arrival}


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [
        (Gpu, "slice_us", "number above 0"),
        (Gpu, "overlap", "whole number 1 to 16"),
        (Gpu, "told_slice_us", "whole number 100 to 1000000 or `null`"),
        (Gpu, "slice_spread_ratio", "number 0 to 1"),
        (Gpu, "vram_bytes", "whole number, 1 or more"),
        (Gpu, "run_to_completion", "`true`, `false`"),
        (Scenario, "seconds", "number above 0, at most 3600"),
        (Scenario, "gpus", "list of mappings"),
        (Scenario, "tenants", "mapping of tenants by name"),
        (Tenant, "quota", "number 0 to 1 or `null`"),
        (Tenant, "tenant_class", "`latency`, `batch`"),
        (Load, "arrival", "mapping"),
        (Load, "trick", "text or `null`"),
    ],
)
def test_a_value_is_described_by_its_type_and_bounds(model: type[Gpu], name: str, words: str) -> None:
    assert kind(model.model_fields[name]) == words


def test_the_example_is_a_scenario(tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(page().split("```yaml\n")[1].split("```")[0])
    assert list(load(file).leaves()) == ["chat", "batch", "team/search", "team/nightly"]


def test_policies_the_command_and_every_shipped_file_are_named() -> None:
    text = page()
    assert "--scenario FILE --policy NAME --seconds N --seed S --json OUT" in text
    for name in POLICIES:
        assert f"`{name}`" in text
    for path in shipped():
        assert text.count(f"\n| `{path.stem}` | ") == 1


def test_every_trick_that_a_load_may_name_is_explained() -> None:
    section = page().split("\n### `trick`\n")[1].split("\n#")[0]
    for name, trick in TRICKS.items():
        assert f"| `{name}` | {trick.description} |" in section


def test_the_command_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference_page.main([]) == 0
    assert capsys.readouterr().out == page()
