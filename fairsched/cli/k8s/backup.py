# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s backup``: saves what apply may change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.cli.k8s.common import cluster_options

if TYPE_CHECKING:
    from fairsched.k8s.client import KubeClient

EPILOG = """\b
Of every node its labels and taints, all quotas, limits and priority classes,
and the ConfigMaps that apply has made; and which of it is ours. The same
state gives the same bytes.
\b
Examples:
  fairsched k8s backup -o before.json
  fairsched k8s backup | diff before.json -"""


@click.command("backup", epilog=EPILOG)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File.  [default: stdout]"
)
@click.option("--overwrite", is_flag=True, help="Also over a file that is there.")
@cluster_options()
def command(client: KubeClient, output: Path | None, overwrite: bool) -> None:
    """Save labels, taints, quotas, limits and priorities of the cluster."""
    from fairsched.errors import FairschedError
    from fairsched.k8s.pools import carry
    from fairsched.k8s.pools.backup import write

    if output is not None and output.exists() and not overwrite:
        raise FairschedError(f"{output} is there already", remedy="name another file, or use --overwrite")
    text = write(carry.everything(client))
    if output is None:
        click.echo(text, nl=False)
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with open(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise FairschedError(f"{output}: {error.strerror}", remedy="name another place with -o") from None
