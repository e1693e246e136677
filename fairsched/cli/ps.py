# SPDX-License-Identifier: Apache-2.0
"""``fairsched ps``: every process on every GPU, and whose it is."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from fairsched.base.printable import printable
from fairsched.base.text import NOT_KNOWN, WIDTH, counted, utc
from fairsched.cli.common import echo_json, echo_lines, json_option
from fairsched.cli.duration import seconds_of
from fairsched.cli.holders import FILTER_HELP, Place, Wanted, place_options
from fairsched.cli.remote import RemoteCommand
from fairsched.cli.text import cut, duration, short_command, short_size, short_uuid, table

if TYPE_CHECKING:
    from fairsched.reclaim.facts import Facts
    from fairsched.reclaim.holder import GpuView, Holder, Listing
    from fairsched.reclaim.listing import Lister

EPILOG = f"""\b
Columns:
  TENANT  - = a process of no tenant
  PID     on the host
  VRAM    GPU memory: M is MiB, G is GiB
  TIME    GPU time of the contexts it has now
  AGE     since it was started
  WHERE   the name of its container, pod, job, unit or user; else the ids of
          pod/container, as its cgroup says, else the name of the cgroup
n/a = not known, which is not 0. Names are cut; --json has them whole, and the
pid it has in its own container. Without the daemon the drivers (NVML, and of
AMD and Intel DRM) and /proc tell, and stderr says so: no launches then, GPU
time of AMD and Intel alone, tenants by the configuration.

{FILTER_HELP}
\b
Examples:
  fairsched ps
  fairsched ps --gpu 3                 who has GPU 3?
  fairsched ps --idle-for 10m          who holds a GPU and does nothing
  fairsched ps --orphans --tree        whose parent is gone
  fairsched ps --filter 'user=ann vram>20G !orphan'
  fairsched ps --watch --sort vram
  fairsched ps --hosts gpus.txt --orphans
  fairsched ps --json | jq '.[] | select(.marks != [])'"""

SORTS: Mapping[str, Callable[[Holder], float | str]] = {
    "time": lambda one: -(one.status.gpu_time_s or 0.0),
    "vram": lambda one: -(one.vram_bytes or 0),
    "age": lambda one: -(one.age_s or 0.0),
    "idle": lambda one: -(one.idle_s or 0.0),
    "pid": lambda one: one.pid,
    "user": lambda one: one.user or "~",
    "tenant": lambda one: one.status.tenant or "~",
}


@click.command("ps", cls=RemoteCommand, epilog=EPILOG)
@click.option("--user", metavar="NAME", help="Only this user's; a name or a uid.")
@click.option("--tenant", metavar="NAME", help="Only this tenant's; '-' = those of none.")
@click.option("--container", metavar="NAME", help="Only this container's or pod's; a name or an id.")
@click.option("--gpu", metavar="GPU", help="Only this GPU's: its index, or the beginning of its UUID.")
@click.option("--name", metavar="REGEX", help="Only those whose command has this in it.")
@click.option("--older-than", metavar="TIME", help="Only those started so long ago: 1d.")
@click.option("--vram-over", metavar="SIZE", help="Only those with more GPU memory: 20G.")
@click.option(
    "--idle-for",
    "--idle",
    "idle_for",
    metavar="TIME",
    help="Only those that hold a GPU and have launched nothing for so long: 10m.",
)
@click.option("--orphans", is_flag=True, help="Only those whose parent is gone.")
@click.option("--zombies", is_flag=True, help="Only those that are defunct, wholly or to look at.")
@click.option("--filter", "expression", metavar="EXPR", help="Only those for which this holds; see below.")
@click.option("--sort", type=click.Choice(list(SORTS)), help="[default: GPU time]")
@click.option("--tree", is_flag=True, help="With their parents, as a tree.")
@click.option(
    "--watch", is_flag=False, flag_value="2s", metavar="[TIME]", help="Again and again.  [default: 2s]"
)
@place_options
@json_option
def command(
    place: Place,
    user: str | None,
    tenant: str | None,
    container: str | None,
    gpu: str | None,
    name: str | None,
    older_than: str | None,
    vram_over: str | None,
    idle_for: str | None,
    orphans: bool,
    zombies: bool,
    expression: str | None,
    sort: str | None,
    tree: bool,
    watch: str | None,
    as_json: bool,
) -> None:
    """Which processes use the GPUs, and whose they are."""
    terms = {"user=": user, "tenant=": tenant, "container=": container, "name~": name}
    terms |= {"age>=": older_than, "vram>": vram_over, "idle>=": idle_for}
    marks = [word for word, is_asked in (("orphan", orphans), ("zombie", zombies)) if is_asked]
    words = [key + value for key, value in terms.items() if value is not None] + marks
    wanted = Wanted(tuple(words), expression, gpu)
    every_s = None if watch is None else seconds_of(watch)
    wanted.filter(()) if gpu is None else None  # a mistake in it is told before anybody is asked
    lister = place.lister()
    if every_s is not None:
        _watch(lister, wanted, sort, every_s, is_tree=tree, as_json=as_json)
        return
    from fairsched.reclaim.marks import plain_of

    listing = lister.look(has_openers=False)
    holders = choose(listing, wanted, sort)
    if as_json:
        echo_json([plain_of(holder) for holder in holders])
    else:
        echo_lines(_screen(listing, holders, wanted, is_tree=tree))


def choose(listing: Listing, wanted: Wanted, sort: str | None = None) -> list[Holder]:
    """Those that are asked for, GPU by GPU."""
    passes = wanted.filter(listing.gpus)
    key = SORTS[sort or "time"]
    found = [holder for holder in listing.holders if passes(holder)]
    return sorted(found, key=lambda one: (one.status.gpu, key(one), one.pid))


def _watch(
    lister: Lister, wanted: Wanted, sort: str | None, every_s: float, *, is_tree: bool, as_json: bool
) -> None:
    """Until Ctrl-C: on a terminal in place, elsewhere one block, or with --json one line, after the other."""
    import threading

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from fairsched.reclaim.marks import plain_of

    pause = threading.Event()
    console = Console()
    is_screen = sys.stdout.isatty() and not as_json
    with Live(console=console, screen=True, auto_refresh=False) if is_screen else _Nothing() as live:
        while True:
            listing = lister.look(has_openers=False)
            holders = choose(listing, wanted, sort)
            lines = [utc(time.time()), *_screen(listing, holders, wanted, is_tree=is_tree)]
            if isinstance(live, Live):
                shown = [printable(line) for line in lines][: console.size.height]
                live.update(Text("\n".join(shown), no_wrap=True), refresh=True)
            elif as_json:
                click.echo(json.dumps([plain_of(holder) for holder in holders]))
            else:
                echo_lines([*lines, ""])
            sys.stdout.flush()
            pause.wait(every_s)


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _screen(listing: Listing, holders: Sequence[Holder], wanted: Wanted, *, is_tree: bool) -> list[str]:
    if is_tree:
        return render_tree(holders, listing.table)
    return render(holders, listing.gpus, listing.table, is_all=wanted.is_all)


def render(
    holders: Sequence[Holder],
    gpus: Iterable[GpuView] = (),
    processes: Mapping[int, Facts] | None = None,
    *,
    is_all: bool = False,
) -> list[str]:
    """A block for each GPU, at most 80 columns wide; a column is at one place in all of them.

    ``is_all``: nothing was filtered, so a GPU without a process is shown where it has memory in use.
    """
    from fairsched.reclaim.holder import unseen_text

    views = {view.uuid: view for view in gpus}
    titles, *rows = table([_TITLES, *map(_row, holders)], right=(2, 3, 4, 5))
    unseen = {uuid: text for uuid, view in views.items() if (text := unseen_text(view, processes or {}))}
    lines: list[str] = []
    shown = dict.fromkeys([holder.status.gpu for holder in holders] + (list(unseen) if is_all else []))
    for uuid in shown:
        here = [(one, row) for one, row in zip(holders, rows, strict=True) if one.status.gpu == uuid]
        lines += [""] if lines else []
        lines.append(_heading(uuid, len(here), views.get(uuid)))
        lines += [titles] if here else []
        for holder, row in here:
            lines.append(cut(row, WIDTH))
            lines += _marks(holder)
        if uuid in unseen:
            lines.append(cut(f"  ! {unseen[uuid]}", WIDTH))
    return lines or ["no process uses a GPU"]


def _heading(uuid: str, count: int, view: GpuView | None) -> str:
    text = f"{short_uuid(uuid)}: {counted(count, 'process', 'processes')}"
    if view is not None and view.driver is not None:
        return cut(_other_heading(view, count), WIDTH)
    if view is None or view.index == "-":
        return text
    memory = "" if view.used_bytes is None else f", {short_size(view.used_bytes)}"
    total = "" if not memory or view.total_bytes is None else f" of {short_size(view.total_bytes)}"
    return f"{text}; GPU {view.index}{memory}{total}{' in use' if memory else ''}"


def _other_heading(view: GpuView, count: int) -> str:
    """Of a GPU that is not NVIDIA's: ``card1 (amdgpu, 0000:03:00.0): 2 processes; listed only``."""
    known = f"{view.index} ({view.driver}, {view.uuid.partition('-')[2]})"
    has_memory = view.used_bytes is not None and view.total_bytes is not None
    memory = f"; {short_size(view.used_bytes)} of {short_size(view.total_bytes)} in use" if has_memory else ""
    return f"{known}: {counted(count, 'process', 'processes')}{memory}; listed only"


def _marks(holder: Holder) -> list[str]:
    from fairsched.reclaim.marks import IDLE_S, marks_of

    said = [f"  ! {mark}" for mark in marks_of(holder)]
    if holder.idle_s is not None and holder.idle_s >= IDLE_S:
        said.append(f"  ! holds the GPU, nothing launched for {duration(holder.idle_s)}")
    return [cut(line, WIDTH) for line in said]


def render_tree(holders: Sequence[Holder], processes: Mapping[int, Facts]) -> list[str]:
    """Each with its parents up to init, which hold no GPU themselves unless they have figures."""
    if not holders:
        return ["no process uses a GPU"]
    mine: dict[int, list[Holder]] = {}
    for holder in holders:
        mine.setdefault(holder.pid, []).append(holder)
    children: dict[int, set[int]] = {}
    for pid in mine:
        child, seen = pid, {pid}
        while (facts := processes.get(child)) is not None and facts.parent > 1 and facts.parent in processes:
            if facts.parent in seen:  # its pid was given to a descendant while /proc was read
                break
            seen.add(facts.parent)
            children.setdefault(facts.parent, set()).add(child)
            child = facts.parent
        children.setdefault(0, set()).add(child)
    rows: list[tuple[str, ...]] = [("USER", "PID", "GPU", "VRAM", "AGE", "COMMAND")]
    notes = [list[str]()]
    pending = [(pid, 0) for pid in sorted(children[0], reverse=True)]
    shown = set[int]()
    while pending:
        pid, depth = pending.pop()
        if pid in shown:
            continue
        shown.add(pid)
        here = mine.get(pid, [])
        rows.append(_tree_row(pid, depth, here, processes.get(pid)))
        notes.append(list(dict.fromkeys(line for holder in here for line in _marks(holder))))
        pending += [(child, depth + 1) for child in sorted(children.get(pid, ()), reverse=True)]
    lines = []
    for line, said in zip(table(rows, right=(1, 3, 4)), notes, strict=True):
        lines += [cut(line, WIDTH), *said]
    return lines


def _tree_row(pid: int, depth: int, here: Sequence[Holder], facts: Facts | None) -> tuple[str, ...]:
    user = next((one.user for one in here if one.user), None)
    sizes = [one.vram_bytes for one in here if one.vram_bytes is not None]
    command = here[0].command if here else None if facts is None else facts.command
    age_s = here[0].age_s if here else None
    return (
        cut(printable(user or "-"), 10),
        str(pid),
        ",".join(one.gpu_index for one in here) or "-",
        short_size(sum(sizes)) if sizes else "-" if not here else NOT_KNOWN,
        "-" if age_s is None else _age(age_s),
        "  " * min(depth, 12) + short_command(command),
    )


_TITLES = ("TENANT", "USER", "PID", "VRAM", "TIME", "AGE", "WHERE", "COMMAND")


def _row(holder: Holder) -> tuple[str, ...]:
    status = holder.status
    return (
        cut(printable(status.tenant or "-"), 12),
        cut(printable(holder.user or NOT_KNOWN), 8),
        str(status.pid),
        short_size(status.vram_bytes),
        NOT_KNOWN if status.gpu_time_s is None else _short(status.gpu_time_s),
        NOT_KNOWN if holder.age_s is None else _age(holder.age_s),
        where(holder),
        short_command(status.command),
    )


def where(holder: Holder) -> str:
    """The name that people know; else what its cgroup says."""
    status = holder.status
    if status.known_as is not None:
        kind, _, name = status.known_as.partition(" ")
        return cut(printable(name.rpartition("/")[2] or kind), 15)
    ids = (status.pod_uid or "-", status.container_id or "-")
    if ids != ("-", "-"):
        return f"{ids[0][:8]}/{ids[1][:6]}"
    return NOT_KNOWN if status.cgroup is None else cut(printable(status.cgroup.rpartition("/")[2]) or "/", 12)


def _short(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _age(seconds: float) -> str:
    """``12s``, ``5m``, ``3h``, ``9d``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"
