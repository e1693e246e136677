# SPDX-License-Identifier: Apache-2.0
"""``fairsched reclaim``: end who holds a GPU, and give it back. Prints the plan and stops, unless --yes is there."""

from __future__ import annotations

import contextlib
import re
import shlex
from typing import TYPE_CHECKING

import click

from fairsched.base.printable import printable
from fairsched.base.text import counted, wrap
from fairsched.cli.common import echo_json, echo_lines, json_option
from fairsched.cli.duration import seconds_of
from fairsched.cli.holders import FILTER_HELP, Place, Wanted, own_of, place_options
from fairsched.cli.remote import RemoteCommand
from fairsched.cli.text import short_command, short_size, short_uuid

if TYPE_CHECKING:
    from fairsched.reclaim.holder import Holder, Listing
    from fairsched.reclaim.listing import Lister
    from fairsched.reclaim.session import Outcome, Prepared, Wish

EPILOG = f"""\b
Without --yes nothing is done. With it: SIGTERM, up to --grace for who saves
what it has, then with --force SIGKILL. A process is ended with those of its
descendants that are in its cgroup. Each is pinned before the plan is made: no
signal reaches another process that got its pid meanwhile. Afterwards the
driver (NVML; of AMD and Intel DRM) is asked whether the memory is back, and
what still holds it is named.
\b
What somebody else froze or stopped (docker pause, Ctrl-Z) stays so: it is
said how to thaw it; --force ends it all the same. Never ended: init, threads
of the kernel, this command and its ancestors, fairsched's own processes.
\b
--reset-gpu is done only where nothing runs and no device file is open; what
is in the way (MIG, vGPU, a display) is said.
Everything is in `fairsched audit show` before it is done. A log that cannot
be written, as on a full disk, refuses.

{FILTER_HELP}
\b
Exit status: 0 done, or the plan was shown; 1 failed, or done in part: one of
those chosen lives, was left with a reason, or its memory is not back; 2 wrong
usage; 3 this host cannot.
\b
Examples:
  fairsched reclaim --gpu 3              what would be ended, and why
  fairsched reclaim --pid 4711 --yes --reason 'hangs since Monday'
  fairsched reclaim --filter 'orphan idle>2h' --yes
  fairsched reclaim --container chat --keep-parent --yes
  fairsched reclaim --hosts gpus.txt --remote-sudo --filter orphan --yes
  fairsched reclaim --gpu 3 --yes --force --reset-gpu"""


def pid_of(text: str) -> tuple[int, int | None]:
    """A pid, or PID:START as a plan prints it; the type of an option. Raises click.BadParameter."""
    match = re.fullmatch(r"([1-9]\d{0,9})(?::(\d+))?", str(text))
    if match is None:
        raise click.BadParameter(f"{text!r} is not a pid, nor PID:START as a plan prints it")
    return int(match[1]), None if match[2] is None else int(match[2])


@click.command("reclaim", cls=RemoteCommand, epilog=EPILOG)
@click.option(
    "--pid", "pids", type=pid_of, multiple=True, metavar="PID[:START]", help="This and its descendants."
)
@click.option("--tenant", metavar="NAME", help="All of this tenant's on GPUs.")
@click.option("--container", metavar="NAME", help="All of this container's or pod's on GPUs.")
@click.option("--gpu", metavar="GPU", help="All on this GPU: its index, or the beginning of its UUID.")
@click.option("--filter", "expression", metavar="EXPR", help="All for which this holds; see below.")
@click.option("--yes", is_flag=True, help="Do it.")
@click.option("--force", is_flag=True, help="SIGKILL to who has not ended after the grace.")
@click.option("--grace", default="30s", show_default=True, metavar="TIME", help="After SIGTERM.")
@click.option("--keep-parent", is_flag=True, help="Keep the root of each tree; end its descendants.")
@click.option("--reset-gpu", is_flag=True, help="Then reset the GPU of --gpu, if nothing runs there.")
@click.option("--reason", metavar="TEXT", help="For the audit log.")
@place_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    place: Place,
    pids: tuple[tuple[int, int | None], ...],
    tenant: str | None,
    container: str | None,
    gpu: str | None,
    expression: str | None,
    yes: bool,
    force: bool,
    grace: str,
    keep_parent: bool,
    reset_gpu: bool,
    reason: str | None,
    as_json: bool,
) -> None:
    """End who holds a GPU, and check that it is free.

    Several options narrow: all of them must hold.
    """
    words = [
        f"{key}={value}" for key, value in (("tenant", tenant), ("container", container)) if value is not None
    ]
    if pids:
        words.append(f"pid={','.join(str(pid) for pid, _ in pids)}")
    wanted = Wanted(tuple(words), expression, gpu)
    if wanted.is_all:
        raise click.UsageError("Say whom: --pid, --tenant, --container, --gpu or --filter.")
    if reset_gpu and gpu is None:
        raise click.UsageError("--reset-gpu resets the GPU of --gpu: name it.")
    grace_s = seconds_of(grace)
    from fairsched.reclaim.audit import DIRECTORY, Audit
    from fairsched.reclaim.session import Session

    lister = place.lister(is_strict=True)
    config = place.config
    session = Session(lister, own_of(place), lambda text: click.echo(printable(text), err=True))
    wish = _wish(
        lister, wanted, pids if len(words) == 1 and expression is None and gpu is None else (), keep_parent
    )
    prepared = session.prepare(wish)
    with contextlib.closing(prepared):
        again = [*_again(prepared, pids), *(["--reset-gpu"] if reset_gpu else [])] if not yes else []
        hurdles = wrap(session.outlook(prepared, wish.gpu)) if reset_gpu and wish.gpu is not None else []
        plan = [*_plan_lines(prepared), *hurdles]
        if not yes:
            if as_json:
                echo_json({"plan": _plain(prepared), "is_done": False, "outcome": None})
            else:
                echo_lines([*plan, *_how_to(again, wish, prepared)])
            ctx.exit(1 if pids and not prepared.plan.targets else 0)
        if not as_json:
            echo_lines(plan)
        is_nothing = not prepared.plan.targets and not reset_gpu
        outcome = None
        if not is_nothing:
            audit = Audit(DIRECTORY if config is None else config.state_dir / "audit")
            outcome = session.act(
                prepared, wish, audit, reason=reason, is_forced=force, grace_s=grace_s, has_reset=reset_gpu
            )
        if as_json:
            plain = None if outcome is None else outcome.plain()
            echo_json({"plan": _plain(prepared), "is_done": not is_nothing, "outcome": plain})
        elif outcome is not None:
            echo_lines(["", *_outcome_lines(outcome, prepared)])
    is_whole = prepared.plan.is_whole and (outcome is None or outcome.is_whole)
    ctx.exit(0 if is_whole else 1)


def _wish(
    lister: Lister, wanted: Wanted, pids: tuple[tuple[int, int | None], ...], keep_parent: bool
) -> Wish:
    """``pids``: where they alone choose, so that they may be parents of holders."""
    from fairsched.reclaim.listing import gpus_called
    from fairsched.reclaim.session import Wish

    listing = lister.look(has_openers=False)
    wanted.filter(listing.gpus)  # a mistake in it is told before anything is done
    gpus = frozenset() if wanted.gpu is None else gpus_called(wanted.gpu, listing.gpus, is_one=True)

    def choose(now: Listing) -> list[Holder]:
        passes = wanted.filter(now.gpus)
        return [holder for holder in now.holders if passes(holder)]

    text = " ".join(
        shlex.quote(one)
        for one in (*wanted.words, wanted.expression, wanted.gpu and f"gpu={wanted.gpu}")
        if one
    )
    gpu = next(iter(gpus)) if len(gpus) == 1 else None
    return Wish(choose, text, dict(pids), keep_parent, gpu)


def _plain(prepared: Prepared) -> dict[str, object]:
    plan = prepared.plan
    return {"targets": [one.plain() for one in plan.targets], "left": [vars(one) for one in plan.left]}


def _plan_lines(prepared: Prepared) -> list[str]:
    """Who is to end, with why; and who is not."""
    plan = prepared.plan
    if not plan.targets and not plan.left:
        return ["nobody is chosen: no process on a GPU is meant by that"]
    size = short_size(sum(one.vram_bytes for one in plan.targets))
    lines = [f"to end: {counted(len(plan.targets), 'process', 'processes')} with {size} of GPU memory"]
    for one in plan.targets:
        user = next((hold.user for hold in one.holds if hold.user), None) or f"uid {one.facts.uid}"
        tenant = next((hold.status.tenant for hold in one.holds if hold.status.tenant), None)
        whose = user if tenant is None else f"{user}, tenant {tenant}"
        memory = f", {short_size(one.vram_bytes)}" if one.holds else ""
        lines += wrap(f"{one.pid} {short_command(one.facts.command)[:120]}", first="  ", rest="      ")
        lines += wrap(printable(f"{whose}; {one.why}{memory}"), first="      ", rest="      ")
        for note in one.notes:
            lines += wrap(printable(f"! {note}"), first="      ", rest="        ")
    for left in plan.left:
        lines += wrap(
            printable(f"not ended: {left.pid} ({left.name}): {left.why}"), first="  ", rest="      "
        )
    return lines


def _again(prepared: Prepared, pids: tuple[tuple[int, int | None], ...]) -> list[str]:
    """Of pids, the same with start times."""
    table = prepared.listing.table
    return [f"--pid {pid}:{table[pid].start_ticks}" for pid, _ in pids if pid in table]


def _how_to(again: list[str], wish: Wish, prepared: Prepared) -> list[str]:
    if not prepared.plan.targets and "--reset-gpu" not in again:
        return []
    if wish.named:
        return ["", "nothing was done; to do it:", f"  fairsched reclaim {' '.join(again)} --yes"]
    return ["", "nothing was done; to do it, say the same with --yes"]


def _outcome_lines(outcome: Outcome, prepared: Prepared) -> list[str]:
    """What became of each, what the GPUs say, and a verdict."""
    lines: list[str] = []
    for one in outcome.ended:
        after = "" if one.after_s is None else f" after {one.after_s:.1f} s"
        why = f": {one.why}" if one.why else ""
        lines += wrap(
            printable(f"{one.fate.value}: {one.target.pid} ({one.target.facts.name}){after}{why}"),
            rest="    ",
        )
    lines += [line for text in outcome.warnings for line in wrap(printable(text))]
    for gpu in outcome.gpus:
        memory = f"{short_size(gpu.before_bytes)} -> {short_size(gpu.after_bytes)} in use"
        state = "free of them" if gpu.is_free else "NOT free"
        is_other = gpu.uuid.startswith("pci-")
        name = f"{gpu.index} ({gpu.uuid})" if is_other else f"GPU {gpu.index} ({short_uuid(gpu.uuid)})"
        lines.append(f"{name}: {memory}, {state}")
        for text in gpu.still:
            lines += wrap(printable(f"! {text}"), first="  ", rest="    ")
        if gpu.others:
            lines += wrap(printable(f"others on it: {', '.join(gpu.others)}"), first="  ", rest="    ")
        for text in gpu.notes:
            lines += wrap(printable(text), first="  ", rest="    ")
    if outcome.reset is not None:
        lines += wrap(printable(f"{'reset' if outcome.reset.is_done else 'not reset'}: {outcome.reset.text}"))
    over = sum(one.fate.is_over for one in outcome.ended)
    is_whole = outcome.is_whole and prepared.plan.is_whole
    left = sum(one.is_refused for one in prepared.plan.left)
    rest = "" if not left else f", {left} left with a reason"
    lines.append(f"{'done' if is_whole else 'done in part'}: {over} of {len(outcome.ended)} ended{rest}")
    return lines
