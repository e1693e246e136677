# SPDX-License-Identifier: Apache-2.0
"""``fairsched escalation status|history|run|rollback``: what the ladder did, and its steps by hand.

Reads and writes the files in state_dir/escalation, under their lock: it works with and without a companion, and never
at the same time as one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.base.text import wrap
from fairsched.cli.common import config_option, echo_json, echo_lines, json_option, socket_option

if TYPE_CHECKING:
    from fairsched.companion.escalate.desk import EscalationDesk
    from fairsched.companion.escalate.model import EscalationLimits, Order, Result, State, StepInForce
    from fairsched.companion.escalate.steps import Step
    from fairsched.config import Config
    from fairsched.protocol.status import StatusReport

STEPS = ("quota", "command", "mig", "evict")

STATUS_EPILOG = """\b
Examples:
  sudo fairsched escalation status
  sudo fairsched escalation status --json"""

HISTORY_EPILOG = """\b
Examples:
  sudo fairsched escalation history         the last 20 entries
  sudo fairsched escalation history -n 500 --json"""

RUN_EPILOG = """\b
Without --for-real it is a dry run: everything is checked, nothing changed.
For real it waits for no condition and no cool-down, counts in the budget of
the hour, and is taken back like any other step, or by `rollback`.
Exit status: 0 done, 1 failed or not possible now.
\b
Examples:
  sudo fairsched escalation run evict
  sudo fairsched escalation run quota --tenant chat --for-real"""

ROLLBACK_EPILOG = """\b
Examples:
  sudo fairsched escalation rollback        everything, newest first
  sudo fairsched escalation rollback 12     what order 12 did"""


@click.group("escalation")
def command() -> None:
    """What is done when fairness stays bad.

    docs/escalation.md explains the ladder, its steps and their limits.
    """


@command.command("status", epilog=STATUS_EPILOG)
@socket_option
@config_option
@json_option
def status_command(socket_path: Path | None, config_path: Path | None, as_json: bool) -> None:
    """Where the ladder stands, what is in force, what it waits for."""
    from fairsched.companion.escalate import policy
    from fairsched.companion.escalate.dry_run import is_dry_run
    from fairsched.companion.escalate.ladder import books_of, limits_of
    from fairsched.protocol.status import to_plain

    config = _load(config_path)
    state, limits = books_of(config)[0].load(), limits_of(config.escalation)
    why_not = _why_no_daemon(socket_path or config.socket_path)
    if as_json:
        section = config.escalation
        is_dry = is_dry_run(limits, state.mode)
        document = {"is_enabled": section.enabled, "is_dry_run": is_dry, "state": to_plain(state)}
        echo_json({**document, "level": policy.level(limits, state), "daemon_error": why_not})
        return
    lines = render_status(config.escalation.enabled, limits, state, time.time())
    if why_not is not None:
        lines += wrap(f"{why_not}: this is how it stood when that was written last", first="! ", rest="  ")
    echo_lines(lines)


def _why_no_daemon(socket: Path) -> str | None:
    """None: one answers."""
    from fairsched.errors import ControlError
    from fairsched.protocol.client import ControlClient

    try:
        ControlClient(socket).request("ping")
    except ControlError as error:
        return str(error)
    return None


def render_status(is_enabled: bool, limits: EscalationLimits, state: State, now_s: float) -> list[str]:
    """At most 80 columns a line."""
    from fairsched.companion.escalate.model import ENFORCE

    steps = [rung.step for rung in limits.ladder]
    if not is_enabled:
        mode = "off"
    elif limits.is_dry_run:
        mode = "dry run: nothing is changed"
    else:
        is_acting = state.mode in (None, ENFORCE)
        mode = "acts" if is_acting else f"dry run, since the daemon's mode is {state.mode}"
    lines = wrap(f"escalation: {mode}; ladder: {', '.join(steps) or 'empty'}")
    for signal, threshold in limits.thresholds.items():
        bad_s = state.bad_for_s.get(signal, 0.0)
        how = f"bad for {bad_s:.0f} of {limits.bad_for_s:.0f} s" if bad_s else "not bad"
        lines += wrap(f"{signal}: {how} (bad above {threshold:g})", first="  ", rest="  ")
    if state.rung is None:
        lines += wrap("no episode", first="  ")
    elif state.rung >= len(steps):
        lines += wrap("the end of the ladder is reached, and it is still bad", first="! ", rest="  ")
    else:
        lines += wrap(f"next step: {steps[state.rung]} ({state.rung + 1} of {len(steps)})", first="  ")
    recent = [at_s for at_s in state.actions_s if now_s - at_s < 3600]
    lines += wrap(f"actions in the last hour: {len(recent)} of {limits.max_actions_per_hour}", first="  ")
    if state.pending is not None:
        lines += wrap(f"order {state.pending.id} is being carried out: {state.pending.step}", first="  ")
    for one in state.in_force:
        lines += wrap(_in_force(one, now_s), first="  ", rest="    ")
    if not state.in_force:
        lines += wrap("nothing is in force", first="  ")
    return lines


def _in_force(one: StepInForce, now_s: float) -> str:
    kind = " (dry run)" if one.is_dry_run else ""
    failed = f"; {one.failed_rollbacks} rollbacks failed" if one.failed_rollbacks else ""
    return f"in force for {max(0.0, now_s - one.at_s):.0f} s{kind}: order {one.id}, {one.step}: {one.detail}{failed}"


@command.command("history", epilog=HISTORY_EPILOG)
@click.option(
    "-n", "count", type=click.IntRange(1), default=20, show_default=True, help="Of the last so many."
)
@config_option
@json_option
def history_command(count: int, config_path: Path | None, as_json: bool) -> None:
    """What was ordered, done, refused and taken back."""
    from fairsched.companion.escalate.ladder import books_of

    entries = books_of(_load(config_path))[1].read(count)
    if as_json:
        echo_json(entries)
        return
    echo_lines(render_history(entries) or ["nothing was ordered yet"])


def render_history(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """At most 80 columns a line."""
    lines: list[str] = []
    for entry in entries:
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(float(entry.get("at_s") or 0.0)))
        lines += wrap(_sentence(entry), first=f"{stamp}  ", rest=" " * (len(stamp) + 2))
    return lines


def _sentence(entry: Mapping[str, Any]) -> str:
    by = "" if entry.get("by") in (None, "companion") else f" [{entry['by']}]"
    if entry.get("event") == "note":
        return f"{entry.get('text')}{by}"
    verb = "take back " if entry.get("kind") == "rollback" else ""
    about = f"{entry.get('id')} {verb}{entry.get('step')}"
    if entry.get("event") == "order":
        dry = " (dry run)" if entry.get("is_dry_run") else ""
        whom = f" for {entry['tenant']}" if entry.get("tenant") else ""
        return f"order {about}{whom}{dry}: {entry.get('why')}{by}"
    return f"  {about}: {entry.get('outcome')}: {entry.get('detail')}{by}"


@command.command("run", epilog=RUN_EPILOG)
@click.argument("step", type=click.Choice(STEPS))
@click.option("--dry-run/--for-real", "is_dry_run", default=True, help="Only check (the default), or do it.")
@click.option("--tenant", help="Whom it is to help.  [default: the one that waits longest]")
@socket_option
@config_option
@json_option
def run_command(
    step: str,
    is_dry_run: bool,
    tenant: str | None,
    socket_path: Path | None,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Take one STEP of the ladder now."""
    from fairsched.companion.escalate import policy
    from fairsched.companion.escalate.model import Kind
    from fairsched.companion.escalate.reading import gpu_of, read
    from fairsched.companion.escalate.steps import carry_out

    config, desk, steps = _set_up(config_path, socket_path, (step,))
    report = _report(config, socket_path)
    worst = next(iter(read(report).sufferers.values()), None) if report is not None else None
    name = tenant or (None if worst is None else worst.tenant)
    found = None if report is None else next((one for one in report.tenants if one.name == name), None)
    order = _order(Kind.APPLY, step, is_dry_run, name, None if found is None else gpu_of(found))
    if is_dry_run:  # leaves no trace, not even in the books
        order = replace(order, earlier=policy.earlier(desk.store.load(), step))
        _show(order, carry_out(steps[step], order, report, lambda undo: None), as_json)
        return
    with _only_we(desk):
        _show(*_carry_out(desk, steps, order, report), as_json)


@command.command("rollback", epilog=ROLLBACK_EPILOG)
@click.argument("number", type=int, required=False, metavar="[ORDER]")
@socket_option
@config_option
@json_option
def rollback_command(
    number: int | None, socket_path: Path | None, config_path: Path | None, as_json: bool
) -> None:
    """Take back what is in force."""
    from fairsched.companion.escalate.model import Kind
    from fairsched.errors import FairschedError

    config, desk, steps = _set_up(config_path, socket_path, STEPS, is_strict=False)
    report = _report(config, socket_path)
    with _only_we(desk):
        wanted = [one for one in reversed(desk.state.in_force) if number in (None, one.id)]
        if number is not None and not wanted:
            raise FairschedError(f"order {number} is not in force", remedy="see fairsched escalation status")
        failures = 0
        for one in wanted:
            order = replace(
                _order(Kind.ROLLBACK, one.step, one.is_dry_run, one.tenant, one.gpu),
                undo=one.undo,
                undoes=one.id,
            )
            failures += _show(*_carry_out(desk, steps, order, report), as_json, is_last=False)
        if not wanted:
            click.echo("[]" if as_json else "nothing is in force")
        if failures:
            raise click.exceptions.Exit(1)


def _load(config_path: Path | None) -> Config:
    from fairsched.config import load

    return load(config_path)


def _set_up(
    config_path: Path | None, socket_path: Path | None, names: tuple[str, ...], *, is_strict: bool = True
) -> tuple[Config, EscalationDesk, Mapping[str, Step]]:
    from fairsched.companion.escalate.desk import EscalationDesk
    from fairsched.companion.escalate.ladder import books_of, limits_of, steps_of
    from fairsched.errors import ConfigError
    from fairsched.protocol.client import ControlClient

    config = _load(config_path)
    store, audit = books_of(config)
    desk = EscalationDesk(limits_of(config.escalation), store, audit, f"by hand, uid {os.getuid()}")
    daemon = ControlClient(socket_path or config.socket_path)
    steps: dict[str, Step] = {}
    for name in names:
        try:
            steps.update(steps_of(config, daemon, only=(name,)))
        except ConfigError:
            if is_strict:
                raise  # to take back what is not configured any more is said at its turn
    return config, desk, steps


def _report(config: Config, socket_path: Path | None) -> StatusReport | None:
    """What the daemon says; None when it does not run: a step that needs it says so."""
    from fairsched.errors import ControlError
    from fairsched.protocol.client import ControlClient
    from fairsched.protocol.status import status_from_plain

    try:
        return status_from_plain(ControlClient(socket_path or config.socket_path).request("status"))
    except ControlError as error:
        click.echo(f"warning: {error}", err=True)
        return None


@contextlib.contextmanager
def _only_we(desk: EscalationDesk) -> Iterator[None]:
    """Holds the lock and the newest state. Raises FairschedError when somebody else acts."""
    from fairsched.errors import FairschedError

    try:
        is_ours = desk.store.lock()
    except OSError as error:
        raise FairschedError(f"{desk.store.directory}: {error.strerror}", remedy="use sudo") from None
    if not is_ours:
        raise FairschedError(
            "the companion, or somebody else, carries out an order just now",
            remedy="wait for it: fairsched escalation status",
        )
    try:
        desk.refresh(time.time())
        yield
    except OSError as error:
        raise FairschedError(
            f"{desk.store.directory}: {error.strerror}",
            remedy="make room; nothing is done that is not written down",
        ) from None
    finally:
        desk.store.unlock()


def _order(kind: Any, step: str, is_dry_run: bool, tenant: str | None, gpu: str | None) -> Order:
    from fairsched.companion.escalate.model import Order

    return Order(0, kind, step, time.time(), is_dry_run, "by hand", tenant=tenant, gpu=gpu)


def _carry_out(
    desk: EscalationDesk, steps: Mapping[str, Step], order: Order, report: StatusReport | None
) -> tuple[Order, Result]:
    """As the companion would, in this process."""
    from fairsched.companion.escalate import policy
    from fairsched.companion.escalate.model import Kind, Outcome, Result
    from fairsched.companion.escalate.steps import carry_out

    order = replace(order, id=desk.state.serial + 1)
    if order.kind is Kind.APPLY:
        order = replace(order, earlier=policy.earlier(desk.state, order.step))
    step = steps.get(order.step)
    if step is None:
        return order, Result(Outcome.FAILED, f"{order.step} is not configured any more")
    desk.begin(policy.by_hand(desk.state, order), order)
    began_s = time.monotonic()
    result = carry_out(
        step, order, report, lambda undo: desk.announce(order, undo), lambda: desk.check(order)
    )
    desk.end(order, result, time.time(), time.monotonic() - began_s)
    return order, result


def _show(order: Order, result: Result, as_json: bool, is_last: bool = True) -> int:
    """Print it; 1 when it did not succeed, and then it is the exit status of the last one."""
    from fairsched.companion.escalate.model import Outcome
    from fairsched.protocol.status import to_plain

    if as_json:
        echo_json({"order": to_plain(order), "result": to_plain(result)})
    else:
        lines = wrap(f"{order.step}: {result.outcome.value}: {result.detail}", rest="  ")
        echo_lines(lines)
    is_bad = result.outcome in (Outcome.FAILED, Outcome.SKIPPED)
    if is_bad and is_last:
        raise click.exceptions.Exit(1)
    return int(is_bad)
