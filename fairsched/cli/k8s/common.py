# SPDX-License-Identifier: Apache-2.0
"""What the commands of ``fairsched k8s`` share: the way to the API server, the file of pools, how outcomes are told."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairsched.base.printable import printable
from fairsched.cli.common import echo_json, echo_lines
from fairsched.k8s import grants

if TYPE_CHECKING:
    from fairsched.k8s.client import KubeClient
    from fairsched.k8s.pools.carry import Outcome
    from fairsched.k8s.pools.plan import Step
    from fairsched.k8s.pools.schema import Pools

F = TypeVar("F", bound=Callable[..., Any])


def cluster_options(grant: str = grants.POOLS) -> Callable[[F], F]:
    """--kubeconfig and --context, handed to a command as one ``client``; ``grant`` is said where RBAC forbids."""

    def decorate(function: F) -> F:
        @click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Cluster and user.  [default: $KUBECONFIG, else ~/.kube/config]",
        )
        @click.option("--context", metavar="NAME", help="Another context of it than the current one.")
        @functools.wraps(function)
        def command(*args: Any, kubeconfig: Path | None, context: str | None, **kwargs: Any) -> Any:
            return function(*args, client=connect(kubeconfig, context, grant), **kwargs)

        return command  # type: ignore[return-value]

    return decorate


def connect(kubeconfig: Path | None, context: str | None, grant: str) -> KubeClient:
    """The client of a person. Raises ConfigError."""
    from fairsched.k8s.client import KubeClient
    from fairsched.k8s.kubeconfig import of_person

    return KubeClient(of_person(kubeconfig, context), grant=grant)


file_option: Callable[[F], F] = click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Node pools; see docs/kubernetes-pools.md.",
)
force_option: Callable[[F], F] = click.option(
    "--force-conflicts", "force", is_flag=True, help="Take over what another manager owns."
)


def plan_of(client: KubeClient, path: Path) -> list[Step]:
    """What a file of pools comes to in this cluster. Raises ConfigError, Refused, Unreachable."""
    from fairsched.k8s.pools import carry
    from fairsched.k8s.pools.desired import wanted_nodes, wanted_objects
    from fairsched.k8s.pools.load import load
    from fairsched.k8s.pools.plan import plan

    pools: Pools = load(path)
    wanted = list(wanted_objects(pools))
    nodes = carry.nodes(client)
    lives = carry.with_named(client, carry.marked(client), [one.ref for one in wanted])
    wishes = [*wanted, *wanted_nodes(pools, nodes, with_taints=True)]
    return plan(wishes, [*lives, *(one.live for one in nodes)])


def show_plan(steps: Sequence[Step], as_json: bool) -> None:
    """What would be done."""
    from fairsched.k8s.pools.words import in_words, plain

    if as_json:
        echo_json([plain(step) for step in steps])
    else:
        echo_lines(in_words(steps))


def do(ctx: click.Context, client: KubeClient, steps: Sequence[Step], *, force: bool, as_json: bool) -> None:
    """Take the steps and tell what became of each; exits with 1 where one was not taken."""
    from fairsched.k8s.pools.carry import carry_out

    outcomes = list(carry_out(client, steps, force=force))
    if as_json:
        from fairsched.k8s.pools.words import plain

        echo_json([{**plain(one.step), "error": one.error, "remedy": one.remedy or None} for one in outcomes])
    else:
        echo_lines(_told(outcomes))
        _complain(outcomes)
    if any(one.error for one in outcomes):
        ctx.exit(1)


def _told(outcomes: Iterable[Outcome]) -> list[str]:
    from fairsched.k8s.pools.words import in_words

    told = list(outcomes)
    nothing = "nothing was changed" if any(one.error for one in told) else "nothing to change"
    return in_words([one.step for one in told if one.error is None])[:-1] or [nothing]


def _complain(outcomes: Iterable[Outcome]) -> None:
    for one in outcomes:
        if one.error is not None:
            click.echo(printable(f"error: {one.step.ref}: {one.error}"), err=True)
            if one.remedy:
                click.echo(printable(f"  remedy: {one.remedy}"), err=True)
