# SPDX-License-Identifier: Apache-2.0
"""The page: one HTML file that loads nothing and runs nothing. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from fairsched.base.text import NOT_KNOWN, percent
from fairsched.cli.page.charts import COLOURS, Board, Chart
from fairsched.cli.page.svg import DASHES, LARGE, SMALL, draw
from fairsched.cli.page.tiles import tiles
from fairsched.cli.text import duration, milliseconds
from fairsched.companion.history.read import Past, Series

LIGHT = ("#0b63c1", "#b8470f", "#07795a", "#8a4bc2", "#8a6500", "#0a7287", "#b83270", "#5f5a50")
DARK = ("#6db3ff", "#ff9d6e", "#4ed2a6", "#c9a2ff", "#e2c04c", "#5fd3e6", "#ff93bd", "#bfb5a6")
"""By index of the colour. Each has a contrast of 4.5:1 or more with its background: a test computes it."""
LIGHT_BACKGROUND, DARK_BACKGROUND = "#ffffff", "#14181d"

_STYLE = """
:root{color-scheme:light dark;--bg:%(bg)s;--ink:#1d2329;--soft:#59636e;--rule:#d8dee4;--card:#f5f7f9;
%(light)s}
@media (prefers-color-scheme:dark){:root{--bg:%(dark_bg)s;--ink:#e6eaee;--soft:#a3adb8;--rule:#313941;
--card:#1d232a;%(dark)s}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1040px;padding:28px 20px 60px;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
section{display:flow-root}
h1{font-size:25px;margin:0 0 2px}h2{font-size:18px;margin:32px 0 4px}
h3{font-size:14px;margin:0 0 2px;overflow-wrap:anywhere}
p{margin:0 0 10px;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:18px 0 0}
.tile{background:var(--card);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:19px;font-weight:600;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(225px,1fr));gap:16px}
.plot{position:relative;margin:12px 18px 28px 54px;font-size:12px;line-height:1;color:var(--soft)}
.large{height:200px}.small{height:116px;margin-left:36px}
.plot svg{position:absolute;inset:0;width:100%%;height:100%%;overflow:visible}
.plot span{position:absolute;white-space:nowrap;font-variant-numeric:tabular-nums}
.v{right:100%%;margin-right:7px;transform:translateY(-50%%)}
.t{top:100%%;margin-top:9px;transform:translateX(-50%%)}
.t::before{content:"";position:absolute;left:50%%;top:-9px;height:5px;border-left:1px solid var(--soft)}
path{vector-effect:non-scaling-stroke}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
path.grid{stroke:var(--rule);stroke-width:1}.zero{stroke:var(--soft);stroke-width:1}
.line.due{stroke:var(--ink);stroke-width:1.4}.line.other{stroke:var(--soft);stroke-width:1;opacity:.6}
.area.other{fill:var(--soft);opacity:.2}
.mark{stroke:var(--ink);stroke-width:1;stroke-dasharray:2 4}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:2px 0 6px;font-size:13px;color:var(--soft)}
.legend svg{display:inline-block;width:26px;height:10px;margin-right:6px;vertical-align:middle}
%(classes)s
table{border-collapse:collapse;width:100%%;font-size:14px;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
th,td{text-align:right;padding:5px 10px;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:600}th:first-child,td:first-child{text-align:left}
footer{margin-top:40px;font-size:13px;color:var(--soft)}
@media (max-width:600px){.large .odd{display:none}body{padding:20px 14px 40px}}
@media print{body{max-width:none}section{break-inside:avoid}}
"""


def make_page(board: Board, *, node: str, version: str, now_s: float) -> str:
    """The whole document."""
    past = board.past
    body = [
        f"<h1>GPU shares on {escape(node)}</h1>",
        f"<p>{_moment(past.begin_s)} to {_moment(past.end_s)} {escape(time.strftime('%Z', time.localtime(now_s)))}"
        f", mode {escape(', '.join(past.modes))}{_gaps(past)}</p>",
        _tiles(past),
        *_shares(board),
        *(_section(chart, past) for chart in board.charts),
        _tenants(past),
        _reasons("Holds", past.holds),
        *([_reasons("Holds that a dry run would have made", past.dry_holds)] if past.dry_holds else []),
        f"<footer>fairsched {escape(version)}, written {_moment(now_s)}. A point stands for {_step(past.step_s)}. "
        "Entitled is what a tenant's weight gave it among those who wanted the GPU at that time.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>fairsched report, {escape(node)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _style() -> str:
    def variables(colours: Sequence[str]) -> str:
        return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))

    classes = "".join(
        f".line.c{n}{{stroke:var(--c{n})}}.bar.c{n}{{fill:var(--c{n})}}.area.c{n}{{fill:var(--c{n});opacity:.22}}"
        for n in range(COLOURS)
    )
    return _STYLE % {
        "bg": LIGHT_BACKGROUND,
        "dark_bg": DARK_BACKGROUND,
        "light": variables(LIGHT),
        "dark": variables(DARK),
        "classes": classes,
    }


def _moment(wall_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))


def _step(step_s: float) -> str:
    return duration(step_s) if step_s >= 1 else "less than a second"


def _gaps(past: Past) -> str:
    span = past.end_s - past.begin_s
    words = ""
    if past.on_record_s < 0.98 * span:
        words += f"; nobody looked for {duration(span - past.on_record_s)} of it"
    if not past.gapless:
        words += "; some holds may be missing"
    return words


def _tiles(past: Past) -> str:
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(text)}</span></div>'
        for value, text in tiles(past)
    )
    return f'<div class="tiles">{cells}</div>'


def _shares(board: Board) -> Iterator[str]:
    if not board.shares:
        return
    past = board.past
    more = f" The {board.hidden_shares} that used least are only in the table." if board.hidden_shares else ""
    yield (
        "<section><h2>Share and entitlement</h2><p>Percent of one GPU: what each tenant used, and (dashed) what was "
        f'its due.{more}</p><div class="cards">'
    )
    for chart in board.shares:
        picture = draw(chart, past.begin_s, past.end_s, past.step_s, past.gap_s, SMALL)
        yield f"<div><h3>{escape(chart.title)}</h3>{picture}</div>"
    yield "</div></section>"


def _section(chart: Chart, past: Past) -> str:
    picture = draw(chart, past.begin_s, past.end_s, past.step_s, past.gap_s, LARGE)
    return (
        f"<section><h2>{escape(chart.title)}, {escape(chart.unit)}</h2><p>{escape(chart.note)}</p>"
        f"{_legend(chart)}{picture}</section>"
    )


def _legend(chart: Chart) -> str:
    items = []
    for line in [*reversed(chart.lines)] or chart.bars:
        if line.colour is None:
            continue
        if chart.bars:
            mark = f'<path class="bar c{line.colour}" d="M0 0h24v10h-24Z"/>'
        else:
            dash = DASHES[line.colour % len(DASHES)]
            dashes = f' stroke-dasharray="{dash}"' if dash else ""
            mark = f'<path class="line c{line.colour}" d="M1 5H25"{dashes}/>'
        items.append(
            f'<span><svg viewBox="0 0 26 10" aria-hidden="true">{mark}</svg>{escape(line.label)}</span>'
        )
    others = sum(line.colour is None for line in chart.lines)
    if others:
        items.append(f"<span>grey: {others} more</span>")
    return f'<div class="legend">{"".join(items)}</div>'


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _tenants(past: Past) -> str:
    is_dry = bool(past.dry_holds)
    titles = (
        "tenant",
        "weight",
        "GPU s",
        "used %",
        "entitled %",
        "off by",
        "holds",
        "held s",
        "p99 ms",
        "token/s",
        *(("dry-run holds", "dry-run held s") if is_dry else ()),
    )
    rows = [
        (
            one.name,
            f"{one.weight:g}",
            _figure(one.gpu_time_s),
            percent(one.used_ratio),
            percent(one.entitled_ratio),
            _off(one.used_ratio, one.entitled_ratio),
            str(one.holds),
            _figure(one.held_s),
            milliseconds(one.queue_delay_p99_ms),
            _figure(one.tokens_per_s),
            *((str(one.dry_holds), _figure(one.dry_held_s)) if is_dry else ()),
        )
        for one in past.totals
    ]
    words = (
        "Means over the time on record, all GPUs together; p99 is the worst of the intervals; n/a is not known, "
        "which is not 0."
    )
    return f"<section><h2>Tenants</h2><p>{words}</p>{_table(titles, rows)}</section>"


def _off(used: float | None, entitled: float | None) -> str:
    return NOT_KNOWN if used is None or entitled is None else f"{(used - entitled) * 100:+.1f}"


def _figure(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.1f}"


def _reasons(title: str, holds: Mapping[str, Series]) -> str:
    def total(series: Series) -> int:
        return round(sum(value or 0.0 for _, value in series))

    if not holds:
        return f"<section><h2>{title}</h2><p>Nobody was held.</p></section>"
    ranked = sorted(holds.items(), key=lambda item: -total(item[1]))
    rows = [(reason.replace("_", " "), str(total(series))) for reason, series in ranked]
    return f"<section><h2>{title}</h2>{_table(('reason', 'holds'), rows)}</section>"
