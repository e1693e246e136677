# SPDX-License-Identifier: Apache-2.0
"""``fairsched guard show|test``: who is over which limit, and what the guard would do or would have done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import echo_json, echo_lines, json_option
from fairsched.cli.holders import Place, place_options
from fairsched.errors import FairschedError

if TYPE_CHECKING:
    from fairsched.cli.guard_text import Rehearsed
    from fairsched.config import Config
    from fairsched.guard.judge import Judge
    from fairsched.guard.report import GuardStatus
    from fairsched.guard.sample import Process, Round

_DAY_S = 86_400.0
_STALE_S = 120.0
"""A status that is older has been left by a companion that is gone."""

SHOW_EPILOG = """\b
Without a companion that looks all the time, one look is made here; warnings
that were counted until then are read from state_dir/guard.
\b
Examples:
  sudo fairsched guard show
  sudo fairsched guard show --json | jq '.uses[] | select(.is_over)'"""

TEST_EPILOG = """\b
Nothing is done to anybody, and nothing is written. Without --replay one look
is made, and judged as if everything stayed as it is for a day: nobody comes
or goes, and each process uses as much GPU time as on average since it began.
With --replay the rounds of tapes are judged, as they were recorded in
state_dir/guard or by `audit rogue --record`; a directory stands for all tapes
in it, and no value for state_dir/guard.
--at takes a time of guard.zone: the one look is judged as of then; of tapes,
what comes later is left out.
\b
Exit status: 0 looked (whatever would be done), 1 failed, a tape that cannot
be read; 2 wrong usage or configuration, 3 this host cannot.
\b
Examples:
  sudo fairsched guard test                   what comes if it goes on so
  fairsched guard test --at "2026-12-24 19:00"   who would be there then
  sudo fairsched guard test --replay          the days that are on tape
  fairsched guard test -c new.yaml --replay mon.tape --replay tue.tape"""


@click.group("guard")
def command() -> None:
    """Limits per user, group, tenant, project and GPU, and who is over them."""


@command.command("show", epilog=SHOW_EPILOG)
@place_options
@json_option
def show_command(place: Place, as_json: bool) -> None:
    """Show limits, who is near or over, what is next, and what was done."""
    from fairsched.cli.guard_text import show_lines
    from fairsched.guard.hours import zone_of
    from fairsched.guard.report import to_plain

    config, now_s = _config(place), time.time()
    status = _told(config, now_s) or _looked(place, config)
    if as_json:
        echo_json(to_plain(status))
    else:
        echo_lines(
            show_lines(
                status, now_s if status.is_running else status.t_s or now_s, zone_of(config.guard.zone)
            )
        )


@command.command("test", epilog=TEST_EPILOG)
@click.option(
    "--replay",
    multiple=True,
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Judge tapes instead; several go on from each other.",
)
@click.option("--at", metavar="TIME", help='As of then: "2026-12-24 19:00".')
@click.option(
    "--most", type=click.IntRange(min=1), default=100, show_default=True, help="So much is told at most."
)
@place_options
@json_option
def test_command(place: Place, replay: tuple[str, ...], at: str | None, most: int, as_json: bool) -> None:
    """Tell what the guard would do now, or would have done."""
    from fairsched.cli.guard_text import plain_of, test_lines
    from fairsched.guard.hours import zone_of

    config = _config(place)
    zone = zone_of(config.guard.zone)
    at_s = None if at is None else _moment(at, zone)
    found = _replayed(config, _tapes(config, replay), at_s) if replay else _rehearsed(place, config, at_s)
    if as_json:
        echo_json(plain_of(found))
    else:
        echo_lines(test_lines(found, zone, is_now=not replay, most=most))


def _config(place: Place) -> Config:
    """Strictly: without its allow-list an innocent might be named."""
    from fairsched.config import load

    return load(place.config_path)


def _moment(text: str, zone: tzinfo) -> float:
    with suppress(ValueError, OverflowError):
        return (
            datetime.strptime(text.strip().replace("T", " "), "%Y-%m-%d %H:%M")
            .replace(tzinfo=zone)
            .timestamp()
        )
    raise click.BadParameter(f'{text!r} is not a time: write "2026-12-24 19:00"', param_hint="--at")


def _told(config: Config, now_s: float) -> GuardStatus | None:
    """What a companion has written; None: none runs, or it is stuck."""
    from fairsched.companion.guard import STATUS_FILE
    from fairsched.guard.report import from_plain

    try:
        status = from_plain(json.loads((config.run_dir / STATUS_FILE).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None
    is_fresh = status.t_s is not None and abs(now_s - status.t_s) <= _STALE_S
    return status if is_fresh else None


def _looked(place: Place, config: Config) -> GuardStatus:
    """By one look, with the state that a companion has left."""
    from fairsched.guard.report import GuardStatus
    from fairsched.guard.words import limit_texts

    judge, notes = _judge(config)
    moment = None
    try:
        moment = _look(place)
        judge.feed(moment)
    except FairschedError as error:
        notes.append(f"nobody can be looked at: {error}")
    return GuardStatus(
        mode=config.guard.mode,
        t_s=None if moment is None else moment.t_s,
        interval_s=config.guard.interval,
        limits=limit_texts(judge.rules),
        uses=() if moment is None else tuple(judge.subjects(moment.t_s)),
        notes=(*notes, *judge.notes()),
    )


def _judge(config: Config) -> tuple[Judge, list[str]]:
    """With the state that a companion has left, and what a person must know."""
    from fairsched.companion.guard import STATE_FILE, directory_of, state_for
    from fairsched.companion.guard.unknown import unknown_names
    from fairsched.guard.judge import Judge

    path, notes = directory_of(config.state_dir) / STATE_FILE, unknown_names(config)
    try:
        state = state_for(json.loads(path.read_bytes()), config.guard.mode)
        return Judge(config.guard.rules(), state), notes
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path} cannot be read ({error}): warnings and today's GPU time are counted anew here")
    return Judge(config.guard.rules()), notes


def _look(place: Place) -> Round:
    from fairsched.reclaim.rounds import Collector

    config = place.config
    lister = place.lister()
    if config is None:
        return Collector(lister, tenants=place.tenants).look()
    return Collector(lister, tenants=place.tenants, run_dir=config.run_dir).look()


def _rehearsed(place: Place, config: Config, at_s: float | None) -> Rehearsed:
    """One look, as if it went on."""
    from dataclasses import replace

    from fairsched.cli.guard_text import Rehearsed
    from fairsched.guard.forecast import Rehearsal, play_on
    from fairsched.guard.judge import Judge

    judge, notes = _judge(config)
    if at_s is not None:
        judge = Judge(config.guard.rules())  # what was counted until now is of another time
    moment = _look(place)
    if at_s is not None:
        moment = replace(moment, t_s=at_s)
    rehearsal = Rehearsal(judge)
    uses = Judge(config.guard.rules(), judge.state())
    uses.feed(moment)
    found = Rehearsed(1, moment.t_s, moment.t_s, {one.process.key for one in moment.samples})
    found.uses = uses.subjects(moment.t_s)
    found.news = list(play_on(rehearsal, moment, _DAY_S))
    found.notes = [*notes, *rehearsal.judge.notes()]
    return found


def _replayed(config: Config, tapes: Iterable[Path], until_s: float | None) -> Rehearsed:
    from fairsched.cli.guard_text import Rehearsed
    from fairsched.companion.guard.unknown import unknown_names
    from fairsched.guard.forecast import News, Rehearsal
    from fairsched.guard.judge import Judge
    from fairsched.guard.tape import play_files

    rehearsal, found = Rehearsal(Judge(config.guard.rules())), Rehearsed(notes=unknown_names(config))
    processes: dict[int, Process] = {}
    """By their objects, which are kept: a key for each sample would take longer than to judge it."""
    for moment in play_files(tapes):
        if until_s is not None and moment.t_s > until_s:
            continue
        found.rounds += 1
        found.first_s = moment.t_s if found.first_s is None else found.first_s
        found.last_s = moment.t_s
        processes.update((id(sample.process), sample.process) for sample in moment.samples)
        for breach in rehearsal.feed(moment):
            if breach.is_news:
                found.news.append(News(moment.t_s, breach))
    found.processes = {process.key for process in processes.values()}
    if found.last_s is not None:
        found.uses = rehearsal.judge.subjects(found.last_s)
    found.notes += rehearsal.judge.notes()
    return found


def _tapes(config: Config, replay: Iterable[str]) -> Iterator[Path]:
    """Raises FairschedError where there is none."""
    from fairsched.companion.guard import directory_of

    for name in replay:
        path = Path(name) if name else directory_of(config.state_dir)
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.tape"))
        if not found:
            raise FairschedError(
                f"{path} has no tape",
                remedy="a running guard records them; or make one: fairsched audit rogue --record FILE",
            )
        yield from found
