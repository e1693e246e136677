# SPDX-License-Identifier: Apache-2.0
"""What the handbooks tell an operator to type is there: commands, their options, targets of make, configuration.

That the commands of docs/operating.md do what it says is tried by tests/node/packaging/test_operating.py, and those of
docs/kubernetes.md by tests/k8s/test_handbook.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fairsched.cli import cli
from fairsched.config import load
from scripts.operating.blocks import blocks, shell_blocks
from tests.unit.repo.tree import ROOT

PAGES = tuple(
    ROOT / name
    for name in (
        "README.md",
        "docs/operating.md",
        "docs/symptoms.md",
        "docs/runbooks.md",
        "docs/escalation.md",
        "docs/guard.md",
        "docs/device-gate.md",
        "docs/long-work.md",
        "docs/mig-mps.md",
        "docs/reclaim.md",
        "docs/kubernetes.md",
        "docs/kubernetes-dra.md",
        "docs/kubernetes-policies.md",
        "docs/kubernetes-pools.md",
        "docs/kubernetes-shares.md",
        "docs/kubernetes-teams.md",
        "docs/kubectl.md",
    )
)
OPERATING = ROOT / "docs/operating.md"
_SPAN = re.compile(r"`((?:sudo )?(?:fairsched|make) [^`\n]+)`")
_TARGET = re.compile(r"^([a-z0-9-]+):", re.MULTILINE)
_END = re.compile(r"\s(?:#|\||>|&&|;).*|[;&|)]$")


def typed(page: Path) -> Iterator[str]:
    """Each command of fairsched or make that the page names: in its text, and line by line in its blocks."""
    text = page.read_text(encoding="utf-8")
    yield from _SPAN.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    for block in blocks(page):
        for line in block.text.replace("\\\n", " ").splitlines():
            if re.match(r"(sudo )?(fairsched|make) ", line):
                yield line


def words_of(command: str) -> list[str]:
    for part in ("; fairsched", "&& fairsched"):
        command = command.split(part)[0]
    words = shlex.split(_END.sub("", command))
    return words[1:] if words[0] == "sudo" else words


def complaint(words: list[str]) -> str | None:
    """What is wrong with ``fairsched`` WORDS."""
    command: click.Command = cli
    rest = words
    context = click.Context(cli)
    while rest and isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        if found is None:
            return f"no command {rest[0]!r}"
        command, rest = found, rest[1:]
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    if "--" in rest:
        rest = rest[: rest.index("--")]
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.split("=")[0] not in options]
    return f"no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one_that_there_is(page: Path) -> None:
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    wrong = []
    for command in typed(page):
        program, *rest = words_of(command)
        if program == "make":
            wrong += [
                f"{command}: no target {word}" for word in rest if "=" not in word and word not in targets
            ]
        elif (why := complaint(rest)) is not None:
            wrong.append(f"{command}: {why}")
    assert wrong == []


def test_a_command_that_is_not_there_would_be_noticed() -> None:
    """The judge of the test above does judge."""
    assert complaint(["frobnicate"]) == "no command 'frobnicate'"
    assert complaint(["status", "--fulll"]) == "no option --fulll"
    assert complaint(["tenant", "set", "chat", "--weight", "6"]) is None
    assert complaint(["exec", "chat", "--", "python", "--anything"]) is None
    assert words_of("sudo fairsched doctor   # can this host?") == ["fairsched", "doctor"]
    assert sum(1 for page in PAGES for _ in typed(page)) > 60


def test_the_page_installs_before_it_asks_and_removes_at_the_end() -> None:
    shell = shell_blocks(OPERATING)
    assert shell[0].text.startswith("sudo make install-service")
    assert "sudo make uninstall-service" in shell[-1].text
    everything = "".join(block.text for block in shell)
    for promised in ("make rollback-service", "git pull", "tar -C / -xzf", "fairsched.simgpu load"):
        assert promised in everything
    assert "make setup" not in everything, "production needs no tools for tests"


def test_blocks_say_what_they_are() -> None:
    """sh is executed, yaml a configuration; a block without a word is an output, or a command for developers."""
    assert {block.language for block in blocks(OPERATING)} <= {"sh", "yaml", ""}
    for block in blocks(OPERATING):
        if not block.language:
            assert "install-service" not in block.text and "systemctl" not in block.text


def test_the_configurations_of_the_page_are_valid(tmp_path: Path) -> None:
    found = [block for block in blocks(OPERATING) if block.language == "yaml"]
    assert found
    for block in found:
        file = tmp_path / f"{block.line}.yaml"
        file.write_text(block.text)
        load(file)
