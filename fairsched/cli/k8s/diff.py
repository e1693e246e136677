# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s diff``: what apply would change, as a unified diff; the exit status is kubectl's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import echo_lines
from fairsched.cli.k8s.common import cluster_options, file_option, plan_of

if TYPE_CHECKING:
    from fairsched.k8s.client import KubeClient

EPILOG = """\b
Exit status: 0 no difference, 1 differences, more than 1 an error.
\b
Examples:
  fairsched k8s diff -f pools.yaml
  fairsched k8s diff -f pools.yaml >/dev/null || echo drifted"""


@click.command("diff", epilog=EPILOG)
@file_option
@cluster_options()
@click.pass_context
def command(ctx: click.Context, client: KubeClient, path: Path) -> None:
    """Differences between the cluster and a file of node pools."""
    from fairsched.errors import FairschedError
    from fairsched.k8s.pools.words import as_diff

    try:
        steps = plan_of(client, path)
    except FairschedError as error:
        error.exit_status = max(2, error.exit_status)  # 1 says that there are differences
        raise
    lines = list(as_diff(steps))
    if lines:
        echo_lines(lines)
    ctx.exit(1 if any(step.is_difference for step in steps) else 0)
