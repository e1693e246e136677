# SPDX-License-Identifier: Apache-2.0
"""``fairsched ps``: every process on every GPU, and whose it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from fairsched.base.printable import printable
from fairsched.base.text import NOT_KNOWN, WIDTH, counted
from fairsched.cli.common import daemon_options, echo_json, echo_lines, json_option, report_of
from fairsched.cli.duration import seconds_of
from fairsched.cli.text import cut, duration, gpu_index, short_size, short_uuid, table

if TYPE_CHECKING:
    from fairsched.protocol.client import ControlClient
    from fairsched.protocol.process import ProcessStatus
    from fairsched.protocol.status import GpuStatus

EPILOG = """\b
Columns:
  TENANT  - = a process of no tenant
  PID     on the host
  IN NS   the pid it has in its own container
  CTX     compute contexts it has open
  VRAM    GPU memory: M is MiB, G is GiB
  TIME    GPU time of the contexts it has now
  WHERE   the name of its container, pod, job, unit or user; else the ids of
          pod/container, as its cgroup says, else the name of the cgroup
n/a = not known, which is not 0. Ids are cut; --json has them whole.
\b
Examples:
  fairsched ps
  fairsched ps --tenant chat
  fairsched ps --gpu 0
  fairsched ps --idle 10m          who holds a GPU and does nothing
  fairsched ps --json | jq '.[] | select(.note)'"""


@click.command("ps", epilog=EPILOG)
@click.option("--tenant", metavar="NAME", help="Only this tenant's; '-' = those of none.")
@click.option("--gpu", metavar="GPU", help="Only this GPU's: its index, or the beginning of its UUID.")
@click.option(
    "--idle",
    "idle_s",
    type=seconds_of,
    metavar="TIME",
    help="Only those that hold a GPU and have launched nothing for so long: 10m.",
)
@daemon_options
@json_option
def command(
    client: ControlClient, tenant: str | None, gpu: str | None, idle_s: float | None, as_json: bool
) -> None:
    """Which processes use the GPUs, and whose they are."""
    from fairsched.protocol.process import process_from_plain
    from fairsched.protocol.status import GpuStatus

    documents = client.request("processes")
    wanted = None
    if gpu is not None:
        gpus = {one.uuid: one for one in report_of(client.request("status")).gpus}
        used = {document["gpu"]: GpuStatus(document["gpu"]) for document in documents}
        wanted = uuids_of(gpu, (used | gpus).values())
    documents = [
        document
        for document in documents
        if (tenant is None or (document["tenant"] or "-") == tenant)
        and (wanted is None or document["gpu"] in wanted)
        and (idle_s is None or (document.get("idle_s") or 0.0) >= idle_s)
    ]
    if as_json:
        echo_json(documents)
    else:
        echo_lines(render([process_from_plain(document) for document in documents]))


def uuids_of(name: str, gpus: Iterable[GpuStatus]) -> set[str]:
    """Of the GPUs meant by an index (of a GPU, or of a MIG instance), or by how their UUIDs begin."""
    found = {gpu.uuid for gpu in gpus if gpu_index(gpu) == name or gpu.uuid.startswith(name)}
    if not found:
        known = ", ".join(sorted(f"{gpu_index(gpu)} ({short_uuid(gpu.uuid)})" for gpu in gpus)) or "none"
        raise click.BadParameter(f"there is no GPU '{name}'; there are: {known}", param_hint="--gpu")
    return found


def render(processes: Sequence[ProcessStatus]) -> list[str]:
    """A block for each GPU, at most 80 columns wide; a column is at one place in all of them."""
    if not processes:
        return ["no process uses a GPU"]
    titles, *rows = table([_TITLES, *map(_row, processes)], right=(1, 2, 3, 4, 5))
    lines: list[str] = []
    for gpu in dict.fromkeys(process.gpu for process in processes):
        here = [(process, row) for process, row in zip(processes, rows, strict=True) if process.gpu == gpu]
        lines += [""] if lines else []
        lines += [f"{short_uuid(gpu)}: {counted(len(here), 'process', 'processes')}", titles]
        for process, row in here:
            lines.append(cut(row, WIDTH))
            if process.note:
                lines.append(f"  ! {process.note}")
            if process.idle_s is not None and process.idle_s >= _IDLE_S:
                lines.append(f"  ! holds the GPU, nothing launched for {duration(process.idle_s)}")
    return lines


_IDLE_S = 600.0
"""From here on it is said."""
_TITLES = ("TENANT", "PID", "IN NS", "CTX", "VRAM", "TIME", "WHERE", "COMMAND")


def _row(process: ProcessStatus) -> tuple[str, ...]:
    return (
        cut(process.tenant or "-", 13),
        str(process.pid),
        "-" if process.namespace_pid is None else str(process.namespace_pid),
        NOT_KNOWN if process.contexts is None else str(process.contexts),
        short_size(process.vram_bytes),
        NOT_KNOWN if process.gpu_time_s is None else _short(process.gpu_time_s),
        _where(process),
        _command(process),
    )


def _where(process: ProcessStatus) -> str:
    if process.known_as is not None:
        kind, _, name = process.known_as.partition(" ")
        return cut(printable(name.rpartition("/")[2] or kind), 15)
    ids = (process.pod_uid or "-", process.container_id or "-")
    if ids != ("-", "-"):
        return f"{ids[0][:8]}/{ids[1][:6]}"
    return (
        NOT_KNOWN if process.cgroup is None else cut(printable(process.cgroup.rpartition("/")[2]) or "/", 12)
    )


def _command(process: ProcessStatus) -> str:
    """Without the directory of the program: there is little room."""
    if process.command is None:
        return NOT_KNOWN
    program, blank, words = process.command.partition(" ")
    return (program.rpartition("/")[2] or program) + blank + words


def _short(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
