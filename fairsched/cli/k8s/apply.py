# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s apply``: makes the cluster as a file of node pools says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import json_option
from fairsched.cli.k8s.common import cluster_options, do, file_option, force_option, plan_of

if TYPE_CHECKING:
    from fairsched.k8s.client import KubeClient

EPILOG = """\b
What left the file is taken back, as far as it is ours. Exit status: 0 all is
as the file says, 1 something was refused or is in conflict.
\b
Examples:
  fairsched k8s backup -o before.json && fairsched k8s apply -f pools.yaml
  fairsched k8s apply -f pools.yaml --force-conflicts"""


@click.command("apply", epilog=EPILOG)
@file_option
@force_option
@cluster_options()
@json_option
@click.pass_context
def command(ctx: click.Context, client: KubeClient, path: Path, force: bool, as_json: bool) -> None:
    """Make the cluster as a file of node pools says."""
    do(ctx, client, plan_of(client, path), force=force, as_json=as_json)
