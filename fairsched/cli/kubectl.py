# SPDX-License-Identifier: Apache-2.0
"""``kubectl fairsched``: the shares of all nodes, over the API server alone.

kubectl runs the program ``kubectl-fairsched`` that it finds on PATH. Agents are asked through the proxy of their pods,
all at once; what some do not answer is said on stderr, and the exit status is 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from fairsched import __version__
from fairsched.base.printable import printable
from fairsched.cli.common import echo_json, echo_lines, json_option, report_of
from fairsched.errors import SOME_HOSTS_FAILED, FairschedError
from fairsched.k8s import grants

if TYPE_CHECKING:
    from fairsched.cli.kubectl_text import Node
    from fairsched.k8s.agents import Answer
    from fairsched.k8s.client import KubeClient

F = TypeVar("F", bound=Callable[..., Any])
DEADLINE_S = 5.0
"""For one node. A status is made within two, or not."""

EPILOG = """\b
Examples:
  kubectl fairsched top
  kubectl fairsched shares -n ml
  kubectl fairsched explain ml/llama-0
  kubectl fairsched doctor -n ml llama-0
\b
Exit status: 0 ok, 1 failed, 2 usage, 4 some nodes did not answer."""


class Reach:
    """The cluster, and how long a node may take."""

    def __init__(self, kubeconfig: Path | None, context: str | None) -> None:
        self.kubeconfig, self.context = kubeconfig, context

    def client(self, deadline_s: float | None = None, grant: str = grants.KUBECTL) -> KubeClient:
        from fairsched.k8s.client import KubeClient, Times
        from fairsched.k8s.kubeconfig import of_person

        times = None if deadline_s is None else Times(min(5.0, deadline_s), deadline_s)
        return KubeClient(of_person(self.kubeconfig, self.context), times, grant=grant)


@click.group(
    "fairsched",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Cluster and user.  [default: $KUBECONFIG, else ~/.kube/config]",
)
@click.option("--context", metavar="NAME", help="Another context of it than the current one.")
@click.version_option(__version__, prog_name="kubectl-fairsched")
@click.pass_context
def group(ctx: click.Context, kubeconfig: Path | None, context: str | None) -> None:
    """Shares of GPU time on all nodes of a cluster."""
    ctx.obj = Reach(kubeconfig, context)


def agent_options(function: F) -> F:
    """How agents are found and asked."""
    for option in (
        click.option("--agents-in", metavar="NAMESPACE", help="Where agents are.  [default: all]"),
        click.option("--node", "names", multiple=True, metavar="NAME", help="Only these; may be repeated."),
        click.option("--https", is_flag=True, help="Agents serve TLS (metrics.web_config)."),
        click.option(
            "--node-timeout",
            "deadline_s",
            metavar="SECONDS",
            type=click.FloatRange(0.1, 300),
            default=DEADLINE_S,
            show_default=True,
            help="For the answer of one node.",
        ),
    ):
        function = option(function)
    return function


namespace_option: Callable[[F], F] = click.option(
    "-n", "--namespace", metavar="NAME", help="Only tenants of this namespace."
)


@group.command("top")
@namespace_option
@agent_options
@json_option
@click.pass_context
def top_command(ctx: click.Context, /, namespace: str | None, as_json: bool, **how: Any) -> None:
    """Tenants and GPUs of each node, once."""
    from fairsched.cli.kubectl_text import is_of, top

    answers = _ask(ctx.obj, "/status", **how)
    nodes = _nodes(answers)
    if as_json:
        documents = {one.agent.node: one.document for one in answers if one.error is None and one.document}
        for document in documents.values():
            document["tenants"] = [one for one in document["tenants"] if is_of(one["name"], namespace)]  # type: ignore[index]
        echo_json({"nodes": documents, "errors": _errors(answers)})
    else:
        echo_lines(top(nodes, namespace))
    _end(ctx, answers)


@group.command("shares")
@namespace_option
@agent_options
@json_option
@click.pass_context
def shares_command(ctx: click.Context, /, namespace: str | None, as_json: bool, **how: Any) -> None:
    """What each tenant has of all GPUs of the cluster together."""
    from fairsched.cli.kubectl_text import shares, shares_text

    answers = _ask(ctx.obj, "/status", **how)
    found = shares(_nodes(answers), namespace)
    if as_json:
        echo_json({"tenants": [vars(one) for one in found], "errors": _errors(answers)})
    else:
        echo_lines(shares_text(found))
    _end(ctx, answers)


@group.command("explain")
@click.argument("tenant", metavar="NAMESPACE/POD")
@click.option("--all", "is_all", is_flag=True, help="Tell every hold, not only the last ones.")
@agent_options
@json_option
@click.pass_context
def explain_command(ctx: click.Context, /, tenant: str, is_all: bool, as_json: bool, **how: Any) -> None:
    """Why a tenant was held in the last minute, node by node."""
    answers = _ask(ctx.obj, f"/explain/{quote(tenant, safe='/')}", **how)
    known = [one for one in answers if not (one.error or "").startswith(UNKNOWN)]
    told = [one for one in known if one.document is not None]
    if as_json:
        echo_json(
            {
                "nodes": {one.agent.node: (one.document or {}).get("decisions") for one in told},
                "errors": _errors(known),
            }
        )
    else:
        for one in told:
            echo_lines([f"node {one.agent.node}:", *_story(tenant, one.document or {}, is_all)])
    if not told and not _errors(known):
        raise FairschedError(f"no node has a tenant {tenant!r}", remedy="see: kubectl fairsched shares")
    _end(ctx, known)


UNKNOWN = "it knows nothing of that"


def _story(tenant: str, document: Mapping[str, Any], is_all: bool) -> list[str]:
    from fairsched.cli.explain import render
    from fairsched.protocol.status import decision_from_plain

    report = report_of(document.get("status"))
    now = next((one for one in report.tenants if one.name == tenant), None)
    bad, vram = (now.misbehaviours, now.vram) if now is not None else ((), ())
    records = [decision_from_plain(one) for one in document.get("decisions") or ()]
    return render(
        tenant,
        records,
        report.t_ns,
        bad,
        report.wall_time_s,
        vram,
        now=now,
        is_all=is_all,
        uptime_s=report.uptime_s,
    )


@group.command("doctor")
@click.argument("pod", required=False)
@click.option("-n", "--namespace", metavar="NAME", help="Only pods of this one.  [default: all]")
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, pod: str | None, namespace: str | None, as_json: bool) -> None:
    """Why pods wait, and what is wrong with GPU nodes."""
    from fairsched.cli.k8s.doctor import show

    show(ctx, ctx.obj.client(grant=grants.DOCTOR), pod, namespace, as_json=as_json)


# ---- agents ----


def _ask(
    reach: Reach, path: str, *, agents_in: str | None, names: Sequence[str], https: bool, deadline_s: float
) -> list[Answer]:
    """Every agent's answer. Raises FairschedError where there is none, or none may be asked."""
    from fairsched.k8s.agents import ask_all, find

    agents = find(reach.client(), agents_in, scheme="https" if https else "http")
    if names:
        missing = sorted(set(names) - {one.node for one in agents})
        if missing:
            raise FairschedError(
                f"no agent runs on {', '.join(missing)}", remedy="see: kubectl fairsched doctor"
            )
        agents = [one for one in agents if one.node in names]
    if not agents:
        raise FairschedError(
            "no agent of fairsched runs, or you may not see its namespace",
            remedy="name it with --agents-in, or see: kubectl fairsched doctor",
        )
    answers = ask_all(reach.client(deadline_s), agents, path)
    if answers and all(one.is_forbidden for one in answers):
        raise FairschedError(f"you may not ask the agents: {answers[0].error}", remedy=grants.KUBECTL)
    return [_understood(one) for one in answers] if path == "/status" else answers


def _understood(answer: Answer) -> Answer:
    """An agent of another version is one that did not answer, and no other's trouble."""
    try:
        if answer.document is not None:
            report_of(answer.document)
    except FairschedError as error:
        return replace(answer, document=None, error=str(error))
    return answer


def _nodes(answers: Sequence[Answer]) -> list[Node]:
    from fairsched.cli.kubectl_text import Node

    return [Node(one.agent.node, report_of(one.document)) for one in answers if one.document is not None]


def _errors(answers: Sequence[Answer]) -> dict[str, str]:
    return {one.agent.node: one.error for one in answers if one.error is not None}


def _end(ctx: click.Context, answers: Sequence[Answer]) -> None:
    """What was not answered, on stderr, and the exit status."""
    from fairsched.cli.kubectl_text import failures

    errors = _errors(answers)
    for line in failures(errors, len(answers)):
        click.echo(printable(line), err=True)
    if errors:
        ctx.exit(SOME_HOSTS_FAILED if len(errors) < len(answers) else 1)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script ``kubectl-fairsched``."""
    from fairsched.cli import run_main

    run_main(group, argv, "kubectl fairsched")


if __name__ == "__main__":
    main()
