# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s restore``: puts back what was ours, as a backup has it; says what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import json_option
from fairsched.cli.k8s.common import cluster_options, do, show_plan

if TYPE_CHECKING:
    from fairsched.k8s.client import KubeClient

EPILOG = """\b
What apply has added goes, what it has changed gets its old value. What others
have set or deleted since is left as it is, and said.
\b
Examples:
  fairsched k8s restore before.json --dry-run
  fairsched k8s restore before.json"""


@click.command("restore", epilog=EPILOG)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@cluster_options()
@json_option
@click.pass_context
def command(ctx: click.Context, client: KubeClient, file: Path, dry_run: bool, as_json: bool) -> None:
    """Put back what was ours, as a backup FILE has it."""
    from fairsched.errors import ConfigError
    from fairsched.k8s.pools import carry
    from fairsched.k8s.pools.backup import MAX_BYTES, plan_back, read

    try:
        with open(file, "rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", file=str(file), remedy="check the path"
        ) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"it has more than {MAX_BYTES} bytes", file=str(file), remedy="name a backup")
    saved = read(raw, str(file))
    lives = [one.live for one in carry.nodes(client)] + carry.marked(client)
    lives = carry.with_named(client, lives, [one.ref for one in saved if one.ref.kind != "Node"])
    steps = plan_back(saved, lives)
    if dry_run:
        show_plan(steps, as_json)
    else:
        do(ctx, client, steps, force=False, as_json=as_json)
