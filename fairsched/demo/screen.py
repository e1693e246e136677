# SPDX-License-Identifier: Apache-2.0
"""The moving view: a picture that is redrawn in place on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fairsched.base.text import percent
from fairsched.demo.scene import TENANTS, Tenant, entitlements
from fairsched.protocol.status import StatusReport

WIDTH = 80
_BAR = 32
_BAR_FULL_RATIO = 0.6
"""What a full bar stands for: nobody here gets more."""
HALVES = ("unscheduled: the daemon only observes", "scheduled: the daemon holds whoever is ahead")

_COLOURS = ("#CC79A7", "#56B4E9")
"""Of the halves."""


@dataclass(frozen=True)
class View:
    """One moment of the show."""

    half: int
    elapsed_s: float
    seconds: float
    report: StatusReport
    busy_ratio: float | None
    steps_per_s: Mapping[str, float]


class Screen(Protocol):
    """Where the show is seen."""

    def __enter__(self) -> Screen: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def wait(self, what: str) -> None:
        """Something takes a while."""

    def show(self, view: View) -> None:
        """Draw, or not, if it is too early."""


def choose_screen(console: Console, *, is_live: bool) -> Screen:
    if not is_live:
        return Dark()
    return Terminal(console) if console.is_terminal else Lines(console)


class Dark:
    """Shows nothing."""

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Nothing to undo."""

    def wait(self, what: str) -> None:
        """Nothing to see."""

    def show(self, view: View) -> None:
        """Nothing to see."""


class Lines(Dark):
    """A line per second, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = (0, 0)

    def wait(self, what: str) -> None:
        self._print(what)

    def show(self, view: View) -> None:
        now = (view.half, int(view.elapsed_s))
        if now < self._next:
            return
        if self._next[0] <= view.half and now[1] == 0:
            dues = "  ".join(f"{name} {percent(due)}" for name, due in entitlements().items())
            self._print(f"{HALVES[view.half]}\n  used %, due: {dues}")
        self._next = (view.half, now[1] + 1)
        used = {tenant.name: tenant.used_ratio for tenant in view.report.tenants}
        shares = "  ".join(f"{tenant.name} {percent(used.get(tenant.name)):>5}" for tenant in TENANTS)
        self._print(f"{now[1]:>3} s  {shares}  GPU busy {percent(view.busy_ratio):>5} %")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._console.file.flush()


class Terminal(Dark):
    """One picture, drawn over itself. Nothing else refreshes it, so it cannot flicker."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._has_blocks = console.encoding.lower().startswith("utf")

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.__exit__(None, None, None)

    def wait(self, what: str) -> None:
        self._live.update(Text(what, style="dim"), refresh=True)

    def show(self, view: View) -> None:
        self._live.update(draw(view, has_blocks=self._has_blocks), refresh=True)


def draw(view: View, *, has_blocks: bool = True) -> RenderableType:
    """The picture: 16 lines of at most 80 columns."""
    left_s = max(0.0, view.seconds - view.elapsed_s)
    head = Text.assemble(
        ("fairsched demo", "bold"), ("  simulated GPU; real processes, cgroups, eBPF and daemon", "dim")
    )
    half = Text.assemble((f"{view.half + 1}/2  ", "bold"), (HALVES[view.half], f"bold {_COLOURS[view.half]}"))
    half.append(f"{left_s:.0f} s left".rjust(WIDTH - half.cell_len), style="dim")
    shares = f"SHARE OF GPU TIME, {'┃' if has_blocks else '|'} = due"
    titles = Text(f"TENANT    WEIGHT  {shares:<{_BAR}}   USED    DUE    RATE", style="dim")
    units = Text(f"{'%':>{18 + _BAR + 7}}{'%':>7}", style="dim")
    lines: list[Text] = [head, Text(), half, _progress(view, has_blocks), Text(), titles, units]
    for tenant in TENANTS:
        lines += [_tenant_line(tenant, view, has_blocks), Text()]
    return Group(*lines, _foot(view))


def _progress(view: View, has_blocks: bool) -> Text:
    done = round(WIDTH * min(1.0, view.elapsed_s / view.seconds))
    mark = "━" if has_blocks else "-"
    line = Text(mark * done, style=_COLOURS[view.half])
    return line.append(mark * (WIDTH - done), style="bright_black")


def _tenant_line(tenant: Tenant, view: View, has_blocks: bool) -> Text:
    status = next((one for one in view.report.tenants if one.name == tenant.name), None)
    used = status.used_ratio if status is not None else None
    due = entitlements()[tenant.name]
    line = Text(f"{tenant.name:<9} {tenant.weight:>6}  ")
    line.append_text(bar(used or 0.0, due, tenant.colour, has_blocks=has_blocks))
    is_off = used is not None and abs(used - due) > 0.05
    line.append(f" {percent(used):>6}", style="bold red" if is_off else "bold green")
    line.append(f" {percent(due):>6}")
    line.append(f" {view.steps_per_s[tenant.name]:>6.1f} {tenant.unit}/s")
    return line


def bar(used: float, due: float, colour: str, *, has_blocks: bool = True) -> Text:
    """What it uses, with a mark where its due is."""
    eighths = round(min(used / _BAR_FULL_RATIO, 1.0) * _BAR * 8)
    full, part = divmod(eighths, 8)
    partial = " ▏▎▍▌▋▊▉"[part] if has_blocks and full < _BAR else ""
    cells = ("█" if has_blocks else "#") * full + partial.strip()
    plain = cells.ljust(_BAR)
    mark = min(_BAR - 1, round(due / _BAR_FULL_RATIO * _BAR))
    line = Text(plain[:mark], style=colour)
    # On a full block the mark needs the block's colour behind it, or it would look like a gap.
    line.append("┃" if has_blocks else "|", style=f"bold white on {colour}" if mark < full else "bold white")
    return line.append(plain[mark + 1 :], style=colour)


def _foot(view: View) -> Text:
    dues = entitlements()
    used = {tenant.name: tenant.used_ratio for tenant in view.report.tenants}
    known = [abs(value - dues[name]) for name in dues if (value := used.get(name)) is not None]
    worst = percent(max(known)) if known else "n/a"
    cpu = "" if view.report.cpu_ratio is None else f"   daemon {percent(view.report.cpu_ratio)} % of a CPU"
    return Text(f"GPU busy {percent(view.busy_ratio)} %   largest error {worst} points{cpu}", style="dim")
