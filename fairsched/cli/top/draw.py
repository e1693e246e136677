# SPDX-License-Identifier: Apache-2.0
"""The picture as lines of rich text, one for each line of the screen. Pure.

The table is made for 80 columns. A wider screen gives its columns to the name, the bar, and at last to figures that 80
have no room for. Colour only repeats what a word, a number or a length says already.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from fairsched.base.text import NOT_KNOWN, percent
from fairsched.cli.text import (
    cut,
    duration,
    gibibytes,
    gpu_index,
    gpu_name,
    milliseconds,
    short_size,
    short_uuid,
    with_unit,
)
from fairsched.cli.top.rows import Order, TableRow, choose_scale, clamp_first, make_rows
from fairsched.cli.top.view import View
from fairsched.protocol.status import GpuStatus, StatusReport, TenantState

MIN_WIDTH = 80
_NAME, _BAR = 14, 14
_GPU_LINES = 4
"""More GPUs than this share lines."""
_LEAST_ROWS = 3
"""So many tenants are shown before anything else is."""
_UNFAIR_POINTS = 0.02

GREEN, ORANGE, BLUE = "#009E73", "#E69F00", "#56B4E9"
"""Okabe and Ito's colours, which most colour-blind people can tell apart: as due, more, less."""
_STATES = {
    TenantState.RUN: "green",
    TenantState.HELD: "bold yellow",
    TenantState.IDLE: "dim",
    TenantState.EXEMPT: "cyan",
    TenantState.AWAY: "dim",
    TenantState.FOREIGN: "bold magenta",
}

HELP = (
    ("s", "sort by the next column, and by time held"),
    ("l u w t d v n", "sort by lag, used, weight, tokens, queue delay, VRAM, name"),
    ("r", "the other way round"),
    ("/", "filter: part of a name, or a state; Enter keeps it, Esc drops it"),
    ("p, space", "pause the picture; the daemon goes on"),
    ("arrows, j k", "scroll; PgUp PgDn Home End"),
    ("Ctrl-L", "draw anew"),
    ("?, h", "this help; any key leaves it"),
    ("q, Ctrl-C", "quit"),
    ("", ""),
    ("bar", "GPU time it got in the last window; the mark is what was its due"),
    ("LAG", "ms of GPU time it is owed; negative = it is ahead"),
    ("P99", "ms its work waited while others ran, 99th percentile of 10 s"),
    ("TOK/S", "tokens per second, from its own metrics"),
    ("!", "something is wrong with it: see fairsched status"),
    ("n/a", "not known, which is not 0"),
)


@dataclass(frozen=True)
class Trouble:
    """Why the report is not a new one."""

    message: str
    since_s: float
    """Unix time of the last report; 0 = there was none."""


@dataclass(frozen=True)
class Paper:
    """What there is to draw on."""

    width: int = MIN_WIDTH
    height: int | None = None
    """None = as high as the table."""
    has_blocks: bool = True
    """The terminal knows block characters (UTF-8)."""


@dataclass(frozen=True)
class Frame:
    """A picture, and the view it made of the one it was given (scrolled back into the table, with its scale)."""

    lines: list[Text]
    view: View
    page: int
    """Rows of tenants that it shows."""


def draw(report: StatusReport | None, view: View, paper: Paper, trouble: Trouble | None = None) -> Frame:
    """Exactly `paper.height` lines of at most `paper.width` columns; fewer where no height is given."""
    if view.is_help:
        return _closed(_help(paper), view, paper, 1)
    if report is None:
        words = f"trying again: {trouble.message}" if trouble is not None else "asking the daemon ..."
        return _closed([_banner(words, paper.width)], view, paper, 1)
    rows = make_rows(report, view.order, is_reversed=view.is_reversed, needle=view.needle)
    scale = choose_scale(rows, view.scale)
    top = [_head(report, paper.width)]
    if trouble is not None:
        top.append(_banner(f"as of {_clock(trouble.since_s)}, trying again: {trouble.message}", paper.width))
    extra = [*_slis(report), *_gpus(report.gpus, paper)]
    below = [Text(cut(f"! {words}", paper.width), style="yellow") for words in report.warnings]
    page = len(rows)
    if paper.height is not None:
        room = paper.height - len(top) - 2  # the titles and the foot
        extra = extra[: max(0, room - min(_LEAST_ROWS, len(rows)))]
        below = below[: max(0, room - len(extra) - len(rows))]
        page = max(1, room - len(extra) - len(below))
    first = clamp_first(view.first, len(rows), page)
    shown = rows[first : first + page]
    lines = [*top, *extra, _titles(view, scale, paper)]
    lines += [_row(row, scale, paper) for row in shown]
    if not shown:
        empty = "no tenant matches" if view.needle else "no tenants in the configuration"
        lines.append(Text(empty, style="dim"))
    lines += below
    seen = _Seen(first, len(shown), len(rows), len(report.tenants))
    settled = replace(view, first=first, scale=scale)
    if paper.height is None:
        return Frame([_cropped(line, paper.width) for line in lines], settled, page)
    lines = lines[: paper.height - 1]
    lines += [Text()] * (paper.height - 1 - len(lines))
    return _closed([*lines, _foot(view, seen, paper.width)], settled, paper, page)


@dataclass(frozen=True)
class _Seen:
    """Which rows of how many."""

    first: int
    shown: int
    matching: int
    all: int


def _closed(lines: Sequence[Text], view: View, paper: Paper, page: int) -> Frame:
    """Cut, and filled up to the height of the paper."""
    found = [_cropped(line, paper.width) for line in lines]
    if paper.height is not None:
        found = found[: paper.height]
        found += [Text()] * (paper.height - len(found))
    return Frame(found, view, page)


def _cropped(line: Text, width: int) -> Text:
    """Every line comes through here: a warning has words of others in it, a name, an address, an error."""
    if not line.plain.isprintable():
        line = line.copy()
        line.plain = _printable(line.plain)
    if line.cell_len > width:
        line = line.copy()
        line.truncate(width, overflow="crop")
    return line


def _clock(wall_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(wall_s))


def _banner(words: str, width: int) -> Text:
    return Text(cut(words, width).ljust(width), style="bold reverse")


def _head(report: StatusReport, width: int) -> Text:
    source = report.source.value if report.source is not None else "no account"
    line = Text.assemble(("fairsched ", "bold"), report.daemon_version, "  ")
    line.append(report.mode, style="bold" if report.mode == "enforce" else "bold yellow")
    line.append(f"  {source}  up {duration(report.uptime_s)}", style="dim")
    off = report.fairness_error_ratio
    right = Text()
    if off is not None:
        is_off = off > _UNFAIR_POINTS
        right = Text(f"largest error {percent(off)} points", style="yellow" if is_off else "green")
    return _ends(line, right, width)


def _ends(left: Text, right: Text, width: int) -> Text:
    """Both at their ends of the line; the left one gives way."""
    room = width - right.cell_len - (1 if right.cell_len else 0)
    line = _cropped(left, max(0, room)).copy()
    line.append(" " * (width - line.cell_len - right.cell_len))
    return line.append_text(right)


def _slis(report: StatusReport) -> list[Text]:
    slis = report.slis
    if slis is None:
        return []
    line = Text("SLI   ", style="bold")
    line.append(f"queue p99 {with_unit(milliseconds(slis.queue_delay_p99_ms), 'ms')}   ")
    line.append(f"SM stdev {with_unit(percent(slis.sm_utilization_stdev_ratio), '%')}   ")
    line.append(f"token/s CV {with_unit(percent(slis.token_rate_cv_ratio), '%')}")
    if slis.is_fair is not None:
        word, colour = ("fair", "green") if slis.is_fair else ("unfair", "red")
        line.append("   ").append(word, style=f"bold {colour}")
    return [line]


def _gpus(gpus: Sequence[GpuStatus], paper: Paper) -> list[Text]:
    if not gpus:
        return [Text("no GPU known", style="yellow")]
    if len(gpus) <= _GPU_LINES:
        return [_gpu_wide(gpu, paper) for gpu in gpus]
    half = (paper.width - 2) // 2
    lines = []
    for left in range(0, len(gpus), 2):
        line = _gpu_narrow(gpus[left], half, paper)
        if left + 1 < len(gpus):
            line.append("  ").append_text(_gpu_narrow(gpus[left + 1], half, paper))
        lines.append(line)
    return lines


def _gpu_wide(gpu: GpuStatus, paper: Paper) -> Text:
    line = Text(f"GPU {gpu_index(gpu)} ", style="bold")
    line.append(f"{short_uuid(gpu.uuid)} {cut(gpu_name(gpu), 15):<15} ")
    memory = f"{gibibytes(gpu.memory_used_bytes)}/{gibibytes(gpu.memory_total_bytes)} GiB"
    tail = f" {percent(gpu.busy_ratio):>5} %  {memory:>16}"
    room = max(4, paper.width - line.cell_len - cell_len(tail))
    return line.append_text(bar(gpu.busy_ratio, None, room, BLUE, paper.has_blocks)).append(tail)


def _gpu_narrow(gpu: GpuStatus, width: int, paper: Paper) -> Text:
    line = Text(f"{gpu_index(gpu) + ' ':<3}", style="bold")
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    memory = f"{_short_gib(used)}/{_short_gib(total)}G"
    tail = f" {percent(gpu.busy_ratio):>5} % {memory:>9}"
    room = max(2, width - line.cell_len - cell_len(tail))
    return line.append_text(bar(gpu.busy_ratio, None, room, BLUE, paper.has_blocks)).append(tail)


def _short_gib(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**30:.0f}"


def bar(value: float | None, mark: float | None, width: int, colour: str, has_blocks: bool) -> Text:
    """`value` (0..1) as a bar of `width` columns in eighths of one, with a line at `mark`."""
    eighths = round(min(1.0, max(0.0, value or 0.0)) * width * 8)
    full, part = divmod(eighths, 8)
    blocks = "█" * full + " ▏▎▍▌▋▊▉"[part].strip()
    plain = (blocks if has_blocks else "#" * (full + (part >= 4))).ljust(width)
    line = Text(plain, style=colour)
    if mark is not None:
        at = min(width - 1, round(mark * width))
        # on a full block the mark needs the block's colour behind it, or it would look like a gap
        style = f"bold white on {colour}" if at < full and has_blocks else "bold"
        line = Text(plain[:at], style=colour)
        line.append("┃" if has_blocks else "|", style=style)
        line.append(plain[at + 1 :], style=colour)
    return line


@dataclass(frozen=True)
class _Columns:
    """How wide the columns of the table are; 0 = it has no such column."""

    name: int
    bar: int
    held: int
    tenant_class: int


def _columns(width: int) -> _Columns:
    spare = max(0, width - MIN_WIDTH)
    held = 6 if spare >= 6 else 0
    tenant_class = 8 if spare >= 20 else 0
    spare -= held + tenant_class
    name = _NAME + min(26, spare // 2)
    return _Columns(name, _BAR + spare - (name - _NAME), held, tenant_class)


_SORTED = {
    Order.USED: "USED",
    Order.ENTITLED: "DUE",
    Order.WEIGHT: "WT",
    Order.LAG: "LAG",
    Order.TOKENS: "TOK/S",
    Order.QUEUE: "P99",
    Order.VRAM: "VRAM",
    Order.HELD: "HELD",
    Order.NAME: "TENANT",
}


def _titles(view: View, scale: float, paper: Paper) -> Text:
    columns = _columns(paper.width)
    share = f"SHARE 0-{scale * 100:g} %"
    cells = [("TENANT", -columns.name), ("STATE", -7), ("WT", 5)]
    if columns.tenant_class:
        cells.append(("CLASS", -columns.tenant_class + 1))
    cells += [(cut(share, columns.bar), -columns.bar), ("USED", 5), ("DUE", 5), ("LAG", 5), ("TOK/S", 5)]
    cells.append(("P99", 5))
    if columns.held:
        cells.append(("HELD", columns.held - 1))
    cells.append(("VRAM", 6))
    line = Text(style="bold")
    for title, width in cells:
        text = title.ljust(-width) if width < 0 else title.rjust(width)
        is_sorted = title == _SORTED[view.order]
        line.append(text, style="underline reverse" if is_sorted else "").append(" ")
    line.right_crop(1)
    return line


def _row(row: TableRow, scale: float, paper: Paper) -> Text:
    columns = _columns(paper.width)
    mark = "!" if row.problem else ""
    name = set_cell_size(_printable(row.name), columns.name - len(mark))
    if cell_len(row.name) > columns.name - len(mark):
        name = set_cell_size(name, columns.name - len(mark) - 1) + ("…" if paper.has_blocks else "~")
    line = Text(name + mark, style="bold red" if mark else "")
    line.append(" ").append(f"{row.state.value:<7}", style=_STATES[row.state]).append(" ")
    line.append(f"{_weight(row.weight)}{'*' if row.is_overridden else ''}".rjust(5)).append(" ")
    if columns.tenant_class:
        line.append(f"{row.tenant_class:<{columns.tenant_class - 1}} ")
    line.append_text(_share_bar(row, scale, columns.bar, paper.has_blocks)).append(" ")
    figures = [
        _percent(row.used_ratio),
        _percent(row.entitled_ratio),
        _number(row.lag_ms, 5, signed=True),
        _number(row.tokens_per_s, 5),
        _number(row.queue_delay_p99_ms, 5),
    ]
    line.append(" ".join(text.rjust(5) for text in figures))
    if columns.held:
        line.append(" " + _number(row.held_ms_per_s, columns.held - 1).rjust(columns.held - 1))
    return line.append(" " + short_size(row.vram_bytes).rjust(6))


def _share_bar(row: TableRow, scale: float, width: int, has_blocks: bool) -> Text:
    used, due = row.used_ratio, row.entitled_ratio
    colour = GREEN
    if used is not None and due is not None and abs(used - due) > _UNFAIR_POINTS:
        colour = ORANGE if used > due else BLUE
    mark = None if due is None else due / scale
    return bar(None if used is None else used / scale, mark, width, colour, has_blocks)


def _printable(text: str) -> str:
    """Names come from directories: nothing in them may steer the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _percent(ratio: float | None) -> str:
    return NOT_KNOWN if ratio is None else f"{ratio * 100:.1f}"


def _number(value: float | None, width: int, *, signed: bool = False) -> str:
    """As exact as `width` columns allow, and never wider: 4.25, 42.5, 4250, 42k."""
    if value is None:
        return NOT_KNOWN
    sign = "+" if signed else ""
    candidates = [f"{value:{sign}.1f}"] if value != int(value) or signed else []
    candidates += [f"{value:{sign}.0f}", f"{value / 1e3:{sign}.0f}k", f"{value / 1e6:{sign}.0f}M"]
    if signed and value == 0:
        candidates.insert(0, "0")
    return next((text for text in candidates if len(text) <= width), "#" * width)


def _weight(value: float) -> str:
    """As it was written, where there is room: 0.25, 4."""
    text = f"{value:g}"
    return text if len(text) <= 4 else _number(value, 4)


def _foot(view: View, seen: _Seen, width: int) -> Text:
    if view.is_typing:
        return Text(
            cut(f"filter: {_printable(view.needle)}_   Enter keeps it, Esc drops it", width), style="reverse"
        )
    parts = [f"{seen.first + 1}-{seen.first + seen.shown} of {seen.matching}" if seen.shown else "0"]
    if view.needle:
        parts.append(f"of {seen.all}, filter '{_printable(cut(view.needle, 16))}'")
    parts.append(f"by {view.order.value}{' reversed' if view.is_reversed else ''}")
    left = Text(" ".join(parts), style="dim")
    if view.is_paused:
        left.append(" ").append(" PAUSED ", style="bold reverse")
    right = Text("s sort  / filter  p pause  ? help  q quit", style="dim")
    return _ends(
        left, right if left.cell_len + right.cell_len < width else Text("? help", style="dim"), width
    )


def _help(paper: Paper) -> list[Text]:
    lines = [Text("fairsched top", style="bold"), Text()]
    for key, words in HELP:
        lines.append(Text.assemble((f"{key:<14}", "bold"), words))
    return lines
