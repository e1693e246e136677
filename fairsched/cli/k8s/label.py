# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s label``: labels nodes by the GPUs that they have, and by the pools that they are in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import json_option
from fairsched.cli.k8s.common import cluster_options, do, force_option, show_plan

if TYPE_CHECKING:
    from fairsched.k8s.client import KubeClient

EPILOG = """\b
Labels: accelerator (h100, a100, l4 ...), gpu-count, mig (on, off, none), and
with a file those of its pools. GPUs are those of GPU feature discovery's
labels, or with --nvml those of the node that this runs on. A node of which
nothing is known now keeps what was known.
\b
Examples:
  fairsched k8s label --dry-run
  fairsched k8s label -f pools.yaml
  fairsched k8s label --nvml --node gpu-7"""


@click.command("label", epilog=EPILOG)
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="Node pools, too."
)
@click.option("--node", "names", multiple=True, metavar="NAME", help="Only this node; may be repeated.")
@click.option("--nvml", is_flag=True, help="Ask NVML here; for one node.  [default: $NODE_NAME]")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@force_option
@cluster_options()
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    client: KubeClient,
    path: Path | None,
    names: tuple[str, ...],
    nvml: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Label nodes by the GPUs that they have."""
    from fairsched.k8s.pools import carry
    from fairsched.k8s.pools.desired import wanted_nodes
    from fairsched.k8s.pools.load import load
    from fairsched.k8s.pools.plan import plan

    detected = {}
    if nvml:
        from fairsched.k8s.pools.nvml import detect_here

        names = names or tuple(filter(None, [os.environ.get("NODE_NAME")]))
        if len(names) != 1:
            raise click.UsageError("--nvml is for the node that this runs on: name it with --node.")
        detected = {names[0]: detect_here()}
    pools = load(path) if path is not None else None
    nodes = carry.nodes(client, names, detected)
    steps = plan(wanted_nodes(pools, nodes, with_taints=False), [one.live for one in nodes], prunes=False)
    if dry_run:
        show_plan(steps, as_json)
    else:
        do(ctx, client, steps, force=force, as_json=as_json)
