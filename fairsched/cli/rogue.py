# SPDX-License-Identifier: Apache-2.0
"""``fairsched audit rogue``: who looks like a rogue, by which rules and on what evidence. It ends nobody."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.base.printable import printable
from fairsched.base.text import NOT_KNOWN, WIDTH, counted, utc, wrap
from fairsched.cli.common import echo_json, echo_lines, json_option
from fairsched.cli.duration import seconds_of
from fairsched.cli.holders import Place, place_options
from fairsched.cli.text import cut, duration, short_command, short_uuid, table
from fairsched.errors import FairschedError

if TYPE_CHECKING:
    from fairsched.config import Config
    from fairsched.guard.finding import Finding, Verdict, Worst
    from fairsched.guard.sample import Round
    from fairsched.reclaim.rounds import Collector

_WEEK_S = 7 * 86400.0
_LONG_KINDS = ("no_progress", "miner", "evasion")
"""Kinds that need to see for a while; what the others need was counted before."""

EPILOG = """\b
Rules and the allow-list are those of `reclaim` in the configuration. Several
findings on a process add up; what is not known of it matches nothing. A
report is a reason to look, and to ask its user: nobody is ended.
\b
Exit status: 0 looked (whether or not anybody is reported), 1 failed, a tape
that cannot be read; 2 wrong usage or configuration, 3 this host cannot.
\b
Examples:
  sudo fairsched audit rogue --for 6m --explain   look, and say why
  sudo fairsched audit rogue --for 1d --every 30s \\
      --record /var/lib/fairsched/guard/mon.tape  keep what is looked at
  fairsched audit rogue --replay mon.tape --min-score 0.8
  sudo fairsched audit rogue --weekly             by tenant, user and rule"""


@dataclass
class Seen:
    """What rounds came to."""

    worst: Worst
    rounds: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    processes: set[tuple[str, int, int]] = field(default_factory=set)
    gpus: set[str] = field(default_factory=set)
    gaps: int = 0
    """Rounds that came so long after the one before that nothing is known to have lasted."""

    def feed(self, moment: Round, findings: Iterable[Finding]) -> None:
        from fairsched.guard.step import GAP_S

        self.gaps += self.rounds > 0 and moment.t_s - self.last_s > GAP_S
        self.first_s = self.first_s if self.rounds else moment.t_s
        self.last_s = max(self.last_s, moment.t_s)
        self.rounds += 1
        self.processes |= {sample.process.key for sample in moment.samples}
        self.gpus |= {sample.gpu for sample in moment.samples}
        self.worst.feed(moment.t_s, findings)


@click.command("rogue", epilog=EPILOG)
@click.option("--for", "for_s", metavar="TIME", default="60s", show_default=True, help="Look for so long.")
@click.option("--every", "every_s", metavar="TIME", default="5s", show_default=True, help="Look so often.")
@click.option(
    "--replay",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Look at a tape instead; several go on from each other.",
)
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep what is looked at on a new tape.",
)
@click.option("--weekly", is_flag=True, help="Report of the last seven days, from tapes in state_dir/guard.")
@click.option("--explain", is_flag=True, help="With the evidence, also of those below the score.")
@click.option(
    "--min-score",
    metavar="SCORE",
    type=click.FloatRange(0, 1),
    help="Report from this score on.  [default: the configuration's]",
)
@place_options
@json_option
def command(
    place: Place,
    for_s: str,
    every_s: str,
    replay: tuple[Path, ...],
    record: Path | None,
    weekly: bool,
    explain: bool,
    min_score: float | None,
    as_json: bool,
) -> None:
    """Show who looks like a rogue: a hang, a hoarder, a miner, evasion."""
    from fairsched.config import load

    if weekly + bool(replay) + (record is not None) > 1:
        raise click.UsageError("--weekly, --replay and --record exclude each other")
    lasting_s, pause_s = seconds_of(for_s), _pause_s(every_s)
    config = load(place.config_path)  # strictly: without its allow-list an innocent might be named
    least = config.reclaim.min_score if min_score is None else min_score
    if weekly:
        seen = _week(config)
        found = seen.worst.verdicts(least)
        _note_gaps(seen)
        echo_json(weekly_rows(found)) if as_json else echo_lines(render_week(found, seen))
        return
    if replay:
        from fairsched.guard.tape import play_files

        seen = _judge(config, play_files(replay))
        _note_gaps(seen)
    else:
        seen = _judge(config, _live(_collector(place), lasting_s, pause_s, record))
        _note_short(config, seen)
    if as_json:
        echo_json(plain_of(seen, least))
    else:
        echo_lines(render(seen, least, is_explained=explain))


def _pause_s(every: str) -> float:
    """Raises click.BadParameter where every look would come after a gap: then no rule sees anything last."""
    from fairsched.guard.step import GAP_S

    pause_s = seconds_of(every)
    if pause_s > GAP_S / 2:
        raise click.BadParameter(
            f"{every}: {GAP_S / 2:g} s at most, or nothing is seen to last",
            param_hint="--every",
        )
    return pause_s


def _judge(config: Config, rounds: Iterable[Round], seen: Seen | None = None) -> Seen:
    from fairsched.guard.finding import Worst
    from fairsched.guard.rogue import RogueRules

    seen = seen or Seen(Worst())
    rules = RogueRules(config.reclaim.rogue_rules(), config.reclaim.allowed())
    try:
        for moment in rounds:
            seen.feed(moment, rules.feed(moment))
    except KeyboardInterrupt:
        click.echo("interrupted: this is what was seen until now", err=True)
    return seen


def _collector(place: Place) -> Collector:
    from fairsched.reclaim.rounds import Collector

    config = place.config
    lister = place.lister()
    return Collector(lister) if config is None else Collector(lister, run_dir=config.run_dir)


def _live(collector: Collector, for_s: float, every_s: float, record: Path | None) -> Iterator[Round]:
    """Rounds of this host; each is on the tape before it is judged."""
    import threading

    from fairsched.guard.tape import Recorder

    pause, end_s = threading.Event(), time.monotonic() + for_s
    file = None if record is None else _new_tape(record)
    recorder = None if file is None else Recorder(file)
    try:
        while True:
            next_s = time.monotonic() + every_s
            moment = collector.look()
            if recorder is not None and file is not None:
                try:
                    recorder.write(moment)
                    file.flush()
                except OSError as error:
                    raise _tape_error(record, error) from None
            yield moment
            if next_s > end_s:
                return
            pause.wait(max(0.0, next_s - time.monotonic()))
    finally:
        if file is not None:
            file.close()


def _new_tape(path: Path) -> Any:
    """Only its owner may read it: it has the commands of everybody. An older tape is never written over."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return open(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8"
        )
    except OSError as error:
        raise _tape_error(path, error) from None


def _tape_error(path: Path | None, error: OSError) -> FairschedError:
    remedy = "name a new file in a directory that you may write, with room on its disk"
    return FairschedError(f"{path}: {error.strerror or error}", remedy=remedy)


def _note_short(config: Config, seen: Seen) -> None:
    """Rules that could not match, for they were not given the time."""
    seen_s = seen.last_s - seen.first_s
    waits = {
        rule.name: float(getattr(rule.thresholds, "for_s", 0.0))
        for rule in config.reclaim.rogue_rules()
        if rule.kind in _LONG_KINDS and getattr(rule.thresholds, "for_s", 0.0) > seen_s
    }
    if waits:
        longest = duration(max(waits.values()))
        text = f"note: {', '.join(waits)} may need up to {longest} to see: look for longer (--for)"
        click.echo("\n".join(wrap(printable(text))), err=True)


def _note_gaps(seen: Seen) -> None:
    """Most rules could not match, for nothing was seen to last."""
    from fairsched.guard.step import GAP_S

    if not seen.rounds:
        text = "note: there is no round on it, so nothing can be found"
    elif seen.rounds > 1 and seen.gaps <= (seen.rounds - 1) / 2:
        return
    else:
        far = (
            "there is one round on it"
            if seen.rounds == 1
            else f"{seen.gaps} of {seen.rounds - 1} rounds come more than {duration(GAP_S)} after the one before"
        )
        text = (
            f"note: {far}: what lasts is not seen then, and no_progress, orphan, idle_hoarder, evasion and the shape "
            f"of a miner cannot be found; record with --every {GAP_S / 2:g}s or less"
        )
    click.echo("\n".join(wrap(text)), err=True)


def _week(config: Config) -> Seen:
    from fairsched.guard.finding import Worst
    from fairsched.guard.tape import TapeError, play_files

    directory, since_s = config.state_dir / "guard", time.time() - _WEEK_S
    try:
        tapes = [path for path in sorted(directory.glob("*.tape")) if path.stat().st_mtime >= since_s]
    except OSError as error:
        raise FairschedError(f"{directory}: {error.strerror or error}", remedy="run it as root") from None
    if not tapes:
        raise FairschedError(
            f"{directory} has no tape of the last seven days",
            remedy=f"make one: sudo fairsched audit rogue --for 1d --every 30s --record {directory}/NAME.tape",
        )
    seen = Seen(Worst())
    for path in tapes:
        try:
            _judge(config, (one for one in play_files([path]) if one.t_s >= since_s), seen)
        except TapeError as error:
            click.echo("\n".join(wrap(printable(f"warning: left out from there on: {error}"))), err=True)
    return seen


def render(seen: Seen, least: float, *, is_explained: bool = False) -> list[str]:
    """At most 80 columns wide."""
    found = seen.worst.verdicts(least)
    lasted = duration(seen.last_s - seen.first_s)
    lines = wrap(
        f"looked at {counted(len(seen.processes), 'process', 'processes')} on {counted(len(seen.gpus), 'GPU')} for "
        f"{lasted}; {len(found) or 'none'} of them reported (score {least:g} or more)"
    )
    if found and not is_explained:
        lines += ["", *_table(found)]
    for verdict in found if is_explained else ():
        lines += ["", *_explained(verdict)]
    below = [one for one in seen.worst.verdicts(0.0) if one.score < least]
    if below and is_explained:
        lines += ["", "below that score, and not reported:"]
        for verdict in below:
            lines += ["", *_explained(verdict)]
    return lines


def _table(found: Sequence[Verdict]) -> list[str]:
    rows = [("SCORE", "PID", "TENANT", "USER", "RULES", "COMMAND")]
    for verdict in found:
        one = verdict.process
        rules = ",".join(dict.fromkeys(finding.rule for finding in verdict.findings))
        rows.append(
            (
                f"{verdict.score:.2f}",
                str(one.pid),
                cut(printable(one.tenant or "-"), 12),
                cut(printable(one.user or NOT_KNOWN), 10),
                cut(rules, 24),
                printable(short_command(one.command) or NOT_KNOWN),
            )
        )
    return [cut(line, WIDTH) for line in table(rows, right=(0, 1))]


def _explained(verdict: Verdict) -> list[str]:
    one = verdict.process
    whose = f"{one.user or NOT_KNOWN}, tenant {one.tenant or '-'}"
    head = f"{verdict.score:.2f}  {one.pid} {short_command(one.command)[:60]} ({whose})"
    lines = wrap(printable(head), rest="      ")
    for finding in verdict.findings:
        text = (
            f"{finding.rule} {finding.score:.2f} on {short_uuid(finding.gpu)}: {'; '.join(finding.evidence)}"
        )
        lines += wrap(printable(text), first="  ", rest="    ")
    return lines


def plain_of(seen: Seen, least: float) -> dict[str, Any]:
    """The report for machines."""
    return {
        "rounds": seen.rounds,
        "seconds": round(seen.last_s - seen.first_s, 3),
        "gaps": seen.gaps,
        "processes": len(seen.processes),
        "min_score": least,
        "reported": [_plain(verdict) for verdict in seen.worst.verdicts(least)],
    }


def _plain(verdict: Verdict) -> dict[str, Any]:
    findings = []
    for finding in verdict.findings:
        plain = asdict(finding)
        del plain["process"]
        findings.append(plain)
    return {
        "score": verdict.score,
        "t_s": verdict.t_s,
        "process": asdict(verdict.process),
        "findings": findings,
    }


def weekly_rows(found: Iterable[Verdict]) -> list[dict[str, Any]]:
    """By tenant, user and rule, most processes first."""
    rows: dict[tuple[str | None, str | None, str], dict[str, Any]] = {}
    for verdict in found:
        one = verdict.process
        for rule in dict.fromkeys(finding.rule for finding in verdict.findings):
            row = rows.setdefault(
                (one.tenant, one.user, rule),
                {
                    "tenant": one.tenant,
                    "user": one.user,
                    "rule": rule,
                    "processes": 0,
                    "score": 0.0,
                    "t_s": 0.0,
                },
            )
            row["processes"] += 1
            row["score"] = max(row["score"], verdict.score)
            row["t_s"] = max(row["t_s"], verdict.t_s)
    return sorted(rows.values(), key=lambda row: (-row["processes"], -row["score"], row["rule"]))


def render_week(found: Sequence[Verdict], seen: Seen) -> list[str]:
    """At most 80 columns wide."""
    lines = wrap(
        f"the last seven days, so far as they are on tape: {counted(len(seen.processes), 'process', 'processes')}, "
        f"{len(found) or 'none'} of them reported"
    )
    rows = [("TENANT", "USER", "RULE", "PROCESSES", "WORST", "LAST SEEN")]
    for row in weekly_rows(found):
        rows.append(
            (
                cut(printable(row["tenant"] or "-"), 16),
                cut(printable(row["user"] or NOT_KNOWN), 12),
                cut(row["rule"], 16),
                str(row["processes"]),
                f"{row['score']:.2f}",
                utc(row["t_s"])[:16] + "Z",
            )
        )
    return [*lines, "", *[cut(line, WIDTH) for line in table(rows, right=(3, 4))]] if found else lines
