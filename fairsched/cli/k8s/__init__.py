# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s``: what a person does with a cluster. One command a file, imported when it is used.

Nothing here talks to a daemon: commands speak to the API server, with the rights of who runs them.
"""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "controller": ("fairsched.cli.k8s.controller", "Write whom policies reach into their status."),
    "teams": ("fairsched.cli.k8s.teams", "Keep the weights of Kueue's teams on every node."),
}
"""Command: module (its ``command``) and the line in ``fairsched k8s --help``."""


class LazyGroup(click.Group):
    """Imports the module of a command when the command is used, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


EPILOG = """\b
Examples:
  fairsched k8s teams --dry-run"""


@click.group("k8s", cls=LazyGroup, epilog=EPILOG)
def command() -> None:
    """Node pools and trouble of a Kubernetes cluster.

    The cluster is that of --kubeconfig, $KUBECONFIG or ~/.kube/config; in a pod
    that of its service account.
    """
