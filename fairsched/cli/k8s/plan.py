# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s plan``: what apply would change, in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import json_option
from fairsched.cli.k8s.common import cluster_options, file_option, plan_of, show_plan

if TYPE_CHECKING:
    from fairsched.k8s.client import KubeClient

EPILOG = """\b
+ new, - gone, ~ another value; a line with ! is a conflict: who has set it,
and what is wanted.
\b
Examples:
  fairsched k8s plan -f pools.yaml
  fairsched k8s plan -f pools.yaml --json | jq '.[] | select(.conflicts[0])'"""


@click.command("plan", epilog=EPILOG)
@file_option
@cluster_options()
@json_option
def command(client: KubeClient, path: Path, as_json: bool) -> None:
    """Say in words what 'apply' would change. Changes nothing."""
    show_plan(plan_of(client, path), as_json)
