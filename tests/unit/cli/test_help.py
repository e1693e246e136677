# SPDX-License-Identifier: Apache-2.0
"""What every command says of itself fits 80 columns, and no command's line is cut short."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from fairsched.cli import cli
from fairsched.cli.kubectl import group

COLUMNS = 80


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """It and all below it."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for one in command.list_commands(context):
            below = command.get_command(context, one)
            assert below is not None
            yield from commands(below, f"{name} {one}")


ALL = [*commands(cli, "fairsched"), *commands(group, "kubectl fairsched")]


def test_those_of_k8s_and_of_kubectl_are_among_them() -> None:
    assert {"fairsched k8s plan", "kubectl fairsched explain"} <= {name for name, _ in ALL}


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_its_help_fits_and_is_whole(name: str, command: click.Command) -> None:
    context = click.Context(command, info_name=name, terminal_width=COLUMNS, max_content_width=COLUMNS)
    lines = command.get_help(context).splitlines()
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert [line for line in lines[1:] if line.endswith("...")] == [], "cut short"
