# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s doctor``: why GPU pods wait, and what is wrong with GPU nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fairsched.base.text import counted, wrap
from fairsched.cli.common import echo_json, echo_lines, json_option
from fairsched.cli.k8s.common import cluster_options
from fairsched.k8s import grants

if TYPE_CHECKING:
    from fairsched.k8s.client import KubeClient
    from fairsched.k8s.doctor.cluster import Row

EPILOG = """\b
! is wrong, ? needs a look or is not known, ok is well; -> says what to do.
Exit status: 0 nothing is wrong, 1 something is.
\b
Examples:
  fairsched k8s doctor
  fairsched k8s doctor -n ml
  fairsched k8s doctor -n ml llama-0
  fairsched k8s doctor --json | jq '.[] | select(.state == "bad")'"""
_MARKS = {"bad": "!", "warn": "?", "unknown": "?", "ok": "ok"}


@click.command("doctor", epilog=EPILOG)
@click.argument("pod", required=False)
@click.option("-n", "--namespace", metavar="NAME", help="Only pods of this one.  [default: all]")
@cluster_options(grants.DOCTOR)
@json_option
@click.pass_context
def command(
    ctx: click.Context, client: KubeClient, pod: str | None, namespace: str | None, as_json: bool
) -> None:
    """Say why pods wait, and what is wrong with GPU nodes."""
    show(ctx, client, pod, namespace, as_json=as_json)


def show(
    ctx: click.Context, client: KubeClient, pod: str | None, namespace: str | None, *, as_json: bool
) -> None:
    """The answer; also for ``kubectl fairsched doctor``."""
    from fairsched.k8s.doctor.read import judge, look

    if pod is not None and namespace is None:
        namespace = "default"
    rows = judge(look(client, namespace, pod))
    if as_json:
        echo_json([_plain(row) for row in rows])
    else:
        echo_lines(render(rows))
    if any(row.state == "bad" for row in rows):
        ctx.exit(1)


def _plain(row: Row) -> dict[str, Any]:
    remedy = row.remedy or None
    return {"code": row.code, "state": row.state, "subject": row.subject, "text": row.text, "remedy": remedy}


def render(rows: Sequence[Row]) -> list[str]:
    """Rows by what they are about, at most 80 columns."""
    lines: list[str] = []
    subject = ""
    for row in rows:
        if row.subject != subject:
            subject = row.subject
            lines += wrap(subject)
        lines += wrap(row.text, first=f"  {_MARKS[row.state]:<2} ", rest="     ")
        if row.remedy:
            lines += wrap(row.remedy, first="     -> ", rest="        ")
    bad = sum(row.state == "bad" for row in rows)
    return [*lines, counted(bad, "thing") + " wrong" if bad else "nothing is wrong"]
