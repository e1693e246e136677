# SPDX-License-Identifier: Apache-2.0
"""``fairsched doctor``: facts, what is chosen from them, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.base.printable import printable
from fairsched.base.text import wrap
from fairsched.cli.common import config_option, echo_json, json_option
from fairsched.cli.remote import RemoteCommand
from fairsched.errors import FairschedError

if TYPE_CHECKING:
    from fairsched.host.facts import Check, Choices
    from fairsched.host.ladder import BrakeRung, Rung

EPILOG = """\b
Exit status: 0 fairsched can run here, 1 that is not known, as whoever is not
root cannot look at everything, 2 the configuration is broken, 3 it cannot.
\b
Examples:
  sudo fairsched doctor
  sudo fairsched doctor --json | jq '.checks[] | select(.level != "ok")'"""

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}
_NAME_WIDTH = 20
_RUNGS = "  source     1 s  10 s 1 min  +- points of a GPU, in 19 of 20 windows"


@click.command("doctor", cls=RemoteCommand, epilog=EPILOG)
@config_option
@click.option("--no-bpf", is_flag=True, help="Do not try to load BPF programs.")
@json_option
@click.pass_context
def command(ctx: click.Context, config_path: Path | None, no_bpf: bool, as_json: bool) -> None:
    """Say what this host can do, what fairsched would choose, and what would help."""
    from fairsched.config import Config, load
    from fairsched.host.checks import checks
    from fairsched.host.choose import choose
    from fairsched.host.facts import Check
    from fairsched.host.gather import gather
    from fairsched.host.ladder import brakes, ladder
    from fairsched.protocol.status import to_plain

    broken: FairschedError | None = None
    try:
        config = load(config_path)
    except FairschedError as error:
        # the facts are still worth telling: judge the host by the defaults
        broken, config = error, Config()
    facts = gather(config, try_bpf=not no_bpf)
    rows = checks(facts, config)
    if broken is not None:
        rows.insert(0, Check("config", "fail", str(broken), "judged by the defaults", broken.remedy))
    choices, rungs, hands = choose(facts, config), ladder(facts, config), brakes(facts, config)
    if as_json:
        verdict = {"can_run": choices.can_run if broken is None else False}
        echo_json(
            {
                **verdict,
                "checks": to_plain(rows),
                "choices": to_plain(choices),
                "ladder": to_plain(rungs),
                "brakes": to_plain(hands),
                "facts": to_plain(facts),
            }
        )
    else:
        for line, level in render(rows, choices, rungs, hands):
            click.echo(_painted(printable(line), level))
    if choices.obstacles:
        ctx.exit(3)
    ctx.exit(2 if broken is not None else 0 if choices.can_run else 1)


def render(
    rows: Sequence[Check], choices: Choices, rungs: Sequence[Rung] = (), brakes: Sequence[BrakeRung] = ()
) -> list[tuple[str, str]]:
    """(line, level whose word it starts with or "") for the screen; at most 80 columns a line."""
    lines: list[tuple[str, str]] = []
    indent = " " * (6 + _NAME_WIDTH)
    for row in rows:
        fact = row.fact + (f"; {row.choice}" if row.choice else "")
        first, *rest = wrap(fact, first=f"{row.level:<6}{row.name:<{_NAME_WIDTH}}", rest=indent)
        lines.append((first, row.level))
        lines += [(line, "") for line in rest]
        if row.remedy:
            lines += [(line, "") for line in wrap(f"remedy: {row.remedy}", first=indent, rest=indent + "  ")]
    source = choices.source.value if choices.source is not None else "none"
    lines.append(("", ""))
    lines += [(line, "") for line in (*_ladder(rungs), *_hands(brakes))]
    lines += [(line, "") for line in wrap(f"account: {source} ({choices.source_reason})")]
    can = f"can hold tenants by {choices.brake}" if choices.can_hold else "cannot hold tenants"
    lines += [(line, "") for line in wrap(f"mode: {choices.mode}; {can} ({choices.hold_reason})")]
    return [*lines, *((line, "") for line in wrap(_verdict(choices)))]


def _verdict(choices: Choices) -> str:
    if choices.obstacles:
        return f"fairsched cannot run here: {'; '.join(choices.obstacles)}"
    if choices.not_looked_at:
        return "nothing that was looked at keeps fairsched from running here; for the rest: sudo fairsched doctor"
    return "fairsched can run on this host"


def _ladder(rungs: Sequence[Rung]) -> list[str]:
    """Sources of GPU time, best first."""
    if not rungs:
        return []
    lines = [_RUNGS]
    for rung in rungs:
        points = "".join(f"{value:>6.0f}" for value in rung.error_points)
        why = "in use" if rung.is_in_use else rung.obstacle or "not needed"
        if rung.is_in_use and rung.obstacle:
            why += f": {rung.obstacle}"
        mark = ">" if rung.is_in_use else " "
        lines += wrap(why, first=f"{mark} {rung.source.value:<8}{points}  ", rest=" " * 30)
    return [*lines, *_lift(rungs), ""]


def _hands(brakes: Sequence[BrakeRung]) -> list[str]:
    """Brakes, best first."""
    if not brakes:
        return []
    lines = ["  brake"]
    for hand in brakes:
        why = "in use" if hand.is_in_use else hand.obstacle or "not needed"
        mark = ">" if hand.is_in_use else " "
        lines += wrap(f"{hand.does}: {why}", first=f"{mark} {hand.brake.value:<11}", rest=" " * 13)
    return [*lines, *_lift(brakes), ""]


def _lift(rungs: Sequence[Rung | BrakeRung]) -> list[str]:
    """How to come to the next better one."""
    from fairsched.host.ladder import Rung, lift

    better = lift(rungs)
    if better is None or not better.remedy:
        return []
    name = better.source.value if isinstance(better, Rung) else better.brake.value
    return wrap(f"for {name}: {better.remedy}", first="  ", rest="    ")


def _painted(line: str, level: str) -> str:
    """The first word in colour; click drops colours when stdout is not a terminal."""
    if not level:
        return line
    return click.style(line[: len(level)], fg=_COLORS[level], bold=level == "fail") + line[len(level) :]
