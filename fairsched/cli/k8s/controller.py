# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s controller``: writes whom each GpuSharePolicy reaches into its status, until it is told to end."""

from __future__ import annotations

import signal
from pathlib import Path

import click

EPILOG = """\b
Run it in the cluster (values policies.enabled of the Helm chart), two of it
if one node may fail: the one that holds the Lease writes, the other waits.
Shares do not depend on it.
\b
Examples:
  fairsched k8s controller --namespace fairsched
  fairsched k8s controller --kubeconfig ~/.kube/config --namespace default"""


@click.command("controller", epilog=EPILOG)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Cluster and user.  [default: the service account of the pod]",
)
@click.option(
    "--namespace", envvar="POD_NAMESPACE", required=True, help="Of the Lease.  [default: $POD_NAMESPACE]"
)
@click.option("--lease", "name", help="Name of the Lease.  [default: fairsched-policies]")
@click.option(
    "--log-format", type=click.Choice(["logfmt", "json"]), default="logfmt", help="[default: logfmt]"
)
def command(kubeconfig: Path | None, namespace: str, name: str | None, log_format: str) -> None:
    """Write whom policies reach into their status."""
    from fairsched.base.logs import set_up_logging
    from fairsched.k8s import grants
    from fairsched.k8s.client import KubeClient, Times
    from fairsched.k8s.kubeconfig import access
    from fairsched.k8s.lease import Election, LeaseTimes, identity
    from fairsched.k8s.metadata import MetadataClient
    from fairsched.k8s.policies.controller import CALL_S, LEASE, Controller

    set_up_logging(log_format, "info")
    where, times, lease = access(kubeconfig), Times(call_s=CALL_S), LeaseTimes()
    lease.check(CALL_S)
    client = KubeClient(where, times, grant=grants.POLICIES)
    election = Election(client, namespace, name or LEASE, identity(), times=lease)
    controller = Controller(client, MetadataClient(where, grant=grants.POLICIES), election)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: controller.close())
    controller.run()
