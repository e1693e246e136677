# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s teams``: the controller that writes what Kueue's teams weigh; one of several replicas does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import echo_lines

if TYPE_CHECKING:
    from fairsched.k8s.teams.controller import Change

EPILOG = """\b
Writes the annotation fairsched.io/queues of Namespaces with LocalQueues, and
nothing else (docs/kubernetes-teams.md). Without --prometheus weights are
those that Kueue's objects say. Ends in order on SIGTERM and SIGINT.
\b
Examples:
  fairsched k8s teams --dry-run
  fairsched k8s teams --prometheus http://prometheus.monitoring:9090
  fairsched k8s teams --prometheus https://metrics.example \\
      --prometheus-token-file /var/run/token --bound 1.5 --window 30m"""


def _seconds(ctx: click.Context, parameter: click.Parameter, value: str) -> float:
    from fairsched.cli.duration import seconds_of

    return seconds_of(value)


@click.command("teams", epilog=EPILOG)
@click.option("--prometheus", metavar="URL", help="Where the agents' metrics are; closes the loop.")
@click.option(
    "--prometheus-token-file", type=click.Path(path_type=Path, dir_okay=False), help="A bearer token."
)
@click.option("--prometheus-ca", type=click.Path(path_type=Path, dir_okay=False), help="Its authority.")
@click.option(
    "--window",
    default="10m",
    show_default=True,
    callback=_seconds,
    help="What teams got of this time counts.",
)
@click.option(
    "--bound",
    type=click.FloatRange(1.0, 10.0),
    default=2.0,
    show_default=True,
    help="Weights stay between nominal / BOUND and nominal x BOUND.",
)
@click.option("--interval", default="5s", show_default=True, callback=_seconds, help="Between two rounds.")
@click.option("--namespace", metavar="NAME", help="Of the Lease.  [default: the pod's, else fairsched]")
@click.option(
    "--lease", "lease_name", default="fairsched-teams", show_default=True, help="Name of the Lease."
)
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="Outside of a pod.")
@click.option("--dry-run", is_flag=True, help="One round; say what would be written.")
def command(
    prometheus: str | None,
    prometheus_token_file: Path | None,
    prometheus_ca: Path | None,
    window: float,
    bound: float,
    interval: float,
    namespace: str | None,
    lease_name: str,
    kubeconfig: Path | None,
    dry_run: bool,
) -> None:
    """Keep the weights of Kueue's teams on every node."""
    from fairsched.base.logs import set_up_logging
    from fairsched.k8s import grants
    from fairsched.k8s import kubeconfig as access
    from fairsched.k8s.client import KubeClient, Times
    from fairsched.k8s.lease import Election, LeaseTimes, identity
    from fairsched.k8s.teams import law, usage
    from fairsched.k8s.teams.controller import Controller

    if not 1 <= interval <= 60 or window < 60:
        raise click.UsageError("--interval is 1 to 60 s, --window a minute or more.")
    set_up_logging("logfmt", "info")
    times = Times(connect_s=3.0, call_s=5.0)
    LeaseTimes().check(times.call_s)
    client = KubeClient(access.access(kubeconfig), times, grant=grants.TEAMS)
    source = None
    if prometheus is not None:
        source = usage.Prometheus(prometheus, token_file=prometheus_token_file, authority=prometheus_ca)
    place = namespace or os.environ.get("POD_NAMESPACE") or "fairsched"
    election = Election(
        client, place, lease_name, identity(), times=LeaseTimes(), changed=lambda _: controller.wake()
    )
    controller = Controller(
        client,
        reading=None if source is None else usage.Reader(source.query, window),
        limits=law.Limits(bound, window),
        interval_s=interval,
        is_leader=election.is_leader,
    )
    if dry_run:
        echo_lines(_told(controller.rehearse()))
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        controller.close()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    thread = election.start()
    controller.run()
    election.close()
    thread.join(times.call_s + 1)


def _told(changes: list[Change] | None) -> list[str]:
    if changes is None:
        return ["no Kueue here: nothing to write"]
    said = [f"{one.namespace}: {one.before or '(nothing)'} -> {one.after or '(nothing)'}" for one in changes]
    return said or ["nothing to write"]
