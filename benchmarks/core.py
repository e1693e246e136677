# SPDX-License-Identifier: Apache-2.0
"""The core figures: ``python -m benchmarks.core`` (root), or ``make bench-core``. See README.md.

Examples:
  python -m benchmarks.core                         everything; writes benchmarks/results/core.json
  python -m benchmarks.core --quick                 short windows, for development; writes nothing
  python -m benchmarks.core --only probe            one section
  python -m benchmarks.core --only decode+trainers  a case of the section "account"
  python -m benchmarks.core --quick --output q.json and keep it
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import accounts, observing, shares
from benchmarks.bars import Bar, missed, render, render_rows
from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.cost import probe as probe_cost
from benchmarks.machine import describe
from benchmarks.rig import Rig
from benchmarks.stats import extremes
from fairsched.base.files import replace_file
from fairsched.errors import ConfigError, FairschedError

RESULTS = Path(__file__).resolve().parent / "results" / "core.json"
SECTIONS = ("account", "share", "probe", "observe")
BARS = (
    Bar("account_error_max", "account, largest error of a tenant", 0.02, True, "percent"),
    Bar("account_error_others_max", "the same beside a hostile one", 0.05, True, "percent"),
    Bar("account_unsure_count", "seeable tenants not of high confidence", 0, True, "count"),
    Bar("unseeable_trusted_error_max", "who cannot be seen, wherever it was trusted", 0.05, True, "percent"),
    Bar("share_error_max_points", "weights 4:2:1:1, largest error", 1.5, True, "points"),
    Bar("busy_ratio", "GPU busy, scheduled / not", 0.98, False),
    Bar("probe_ratio", "probe at +10 / at +0", 0.4, True),
    Bar("observe_throughput_ratio", "tokens, observed / not", 0.985, False),
    Bar("daemon_cpu_ratio", "daemon's CPU time, of one CPU", 0.03, True, "percent"),
    Bar("daemon_rss_bytes", "daemon's memory, with helpers", 150e6, True, "bytes"),
)


@dataclass(frozen=True)
class Plan:
    """How long to look."""

    account_s: float = 20.0
    confidence_s: float = 6.0
    """Of a case that is only asked whether the daemon knows that it cannot see."""
    account_settle_s: float = 1.0
    share_s: float = 10.0
    share_settle_s: float = 2.0
    share_rounds: int = 2
    probe_rounds: int = 7
    observe_s: float = 3.0
    observe_settle_s: float = 0.5
    observe_pairs: int = 3


QUICK = Plan(
    account_s=4.0,
    confidence_s=4.0,
    share_s=4.0,
    share_rounds=1,
    probe_rounds=3,
    observe_s=2.0,
    observe_pairs=1,
)


def estimate_s(plan: Plan) -> float:
    """How long a run will take on a quiet machine; starting a daemon (compiler, verifier) takes five seconds."""
    start_s = 5.0
    account_s = 0.0
    for _mode, group in accounts.SERIES:
        seconds = plan.confidence_s if accounts.is_only_asked(group) else plan.account_s
        account_s += start_s + len(group) * (plan.account_settle_s + seconds)
    share_s = plan.share_rounds * (start_s + 2 * (plan.share_settle_s + plan.share_s))
    observe_s = plan.observe_pairs * (start_s + 2 * (plan.observe_settle_s + plan.observe_s))
    probe_s = start_s + 4 * plan.probe_rounds
    return account_s + share_s + observe_s + probe_s


@dataclass
class Report:
    """What was found."""

    values: dict[str, float | None] = field(default_factory=lambda: {bar.key: None for bar in BARS})
    notes: dict[str, str] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)
    errors: list[accounts.TenantError] = field(default_factory=list)


class Run:
    """One run of the chosen sections."""

    def __init__(self, plan: Plan, only: Sequence[str], seed: int) -> None:
        self.report = Report()
        self._plan, self._seed = plan, seed
        names = {case.name for group in accounts.GROUPS for case in group}
        unknown = set(only) - {*SECTIONS, *names}
        if unknown:
            raise ConfigError(
                f"no section or case {', '.join(sorted(unknown))}",
                remedy=f"sections: {', '.join(SECTIONS)}; cases: {' '.join(sorted(names))}",
            )
        self._only = set(only)
        self._started_s = time.monotonic()

    def measure(self, rig: Rig) -> None:
        """All of it, in this order."""
        if self._wants("share"):
            self._share(rig)
        if self._wants("probe"):
            self._probe(rig)
        if self._wants("observe"):
            self._observe(rig)
        self._account(rig)

    def _wants(self, section: str) -> bool:
        return not self._only or section in self._only

    def _wants_case(self, case: accounts.Case) -> bool:
        return self._wants("account") or case.name in self._only

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._started_s:6.1f} s  {what}", file=sys.stderr, flush=True)

    # ---- sections ----

    def _account(self, rig: Rig) -> None:
        for mode, group in accounts.SERIES:
            wanted = tuple(case for case in group if self._wants_case(case))
            if wanted:
                self._account_group(rig, wanted, mode)
        if self.report.errors:
            self._judge_accounts()

    def _account_group(self, rig: Rig, group: accounts.Group, mode: str) -> None:
        plan = self._plan
        seconds = plan.confidence_s if accounts.is_only_asked(group) else plan.account_s
        cases = iter(group)
        self._say(f"account {group[0].name}, {mode}")
        measured = accounts.measure(
            rig, group, mode, seconds=seconds, settle_s=plan.account_settle_s, seed=self._seed
        )
        next(cases)
        for outcome in measured:
            self.report.errors += outcome.errors
            self.report.cases += [
                {"section": "account", **asdict(e), "cpu_wait_ratio": outcome.cpu_wait_ratio}
                for e in outcome.errors
            ]
            for warning in outcome.warnings:
                self._say(f"  warning: {warning}")
            following = next(cases, None)
            if following is not None:
                self._say(f"account {following.name}, {mode}")

    def _judge_accounts(self) -> None:
        report, errors = self.report, self.report.errors
        for key, counts_for in (("account_error_max", "account"), ("account_error_others_max", "others")):
            found = accounts.worst(errors, counts_for)
            if found is not None and found.error_ratio is not None:
                report.values[key] = abs(found.error_ratio)
                report.notes[key] = f"{found.tenant} in {found.case}, {found.mode}: {found.error_ratio:+.2%}"
        unsure = [e for e in errors if e.counts_for == "unsure"]
        report.values["account_unsure_count"] = len(unsure)
        if unsure:
            report.notes["account_unsure_count"] = ", ".join(
                f"{e.tenant} in {e.case}, {e.mode}" for e in unsure
            )
        trusted = [e for e in errors if e.counts_for == "confidence" and (e.low_ratio or 0.0) < 1.0]
        worst = max(trusted, key=lambda e: abs(e.error_ratio or 0.0), default=None)
        report.values["unseeable_trusted_error_max"] = abs(worst.error_ratio or 0.0) if worst else 0.0
        if worst is not None:
            report.notes["unseeable_trusted_error_max"] = (
                f"{worst.tenant} in {worst.case}, {worst.mode}: {worst.error_ratio or 0.0:+.2%}"
            )

    def _share(self, rig: Rig) -> None:
        plan, report = self._plan, self.report
        runs: list[shares.Run] = []
        for number in range(plan.share_rounds):
            for is_scheduled in ((False, True), (True, False))[number % 2]:
                self._say(f"share 4:2:1:1, {'scheduled' if is_scheduled else 'not scheduled'}")
                run = shares.measure(
                    rig,
                    is_scheduled=is_scheduled,
                    seconds=plan.share_s,
                    settle_s=plan.share_settle_s,
                    seed=self._seed + number,
                )
                runs.append(run)
                report.cases.append({"section": "share", **asdict(run)})
        report.values.update(shares.judge(runs))
        report.notes.update(shares.notes(runs))

    def _probe(self, rig: Rig) -> None:
        self._say("probe cost")
        for cost in probe_cost.measure(rig, rounds=self._plan.probe_rounds):
            self.report.cases.append({"section": "probe", **cost.to_plain()})
            if cost.program == probe_cost.PROGRAM:
                self.report.values["probe_ratio"] = cost.ratio
                self.report.notes["probe_ratio"] = "ns per call: " + ", ".join(
                    f"{name} {value:.0f}" for name, value in cost.medians().items()
                )

    def _observe(self, rig: Rig) -> None:
        self._say("observe: a decoder's throughput")
        plan = self._plan
        found = observing.measure(
            rig,
            pairs=plan.observe_pairs,
            seconds=plan.observe_s,
            settle_s=plan.observe_settle_s,
            seed=self._seed,
        )
        self.report.cases.append({"section": "observe", **asdict(found)})
        self.report.values["observe_throughput_ratio"] = found.ratio
        least, middle, most = extremes(found.observed)
        least_not, middle_not, most_not = extremes(found.without)
        self.report.notes["observe_throughput_ratio"] = (
            f"tokens/s {middle:.1f} ({least:.1f}..{most:.1f}) / {middle_not:.1f} ({least_not:.1f}..{most_not:.1f})"
        )


def case_table(errors: Sequence[accounts.TenantError]) -> list[str]:
    """Every account, one line each."""
    rows = [
        (
            e.tenant,
            "" if e.case == e.tenant else e.case,
            e.mode,
            f"{e.share_ratio:.3f}",
            "n/a" if e.error_ratio is None else f"{e.error_ratio:+.2%}",
            "n/a" if e.low_ratio is None else f"{1 - e.low_ratio:.0%}",
            e.counts_for,
        )
        for e in errors
    ]
    return render_rows(("tenant", "case", "mode", "share", "error", "sure", "counts for"), rows)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.core",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="short windows; the figures are not to be quoted"
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a section or a case")
    parser.add_argument("--output", type=Path, metavar="PATH", help="where to write the JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    return parser.parse_args(argv)


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(document, indent=1) + "\n").encode(), mode=0o644)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    about, start_s = describe(), time.monotonic()
    try:
        run = Run(QUICK if options.quick else Plan(), options.only, options.seed)
        with stop_signals(), Rig() as rig:
            run.measure(rig)
    except FairschedError as error:
        return say_error(error)
    except KeyboardInterrupt:
        print("interrupted; nothing was written, everything is cleaned up", file=sys.stderr)
        return INTERRUPTED
    report = run.report
    document = {
        **report.values,
        **about,
        "seconds": round(time.monotonic() - start_s, 1),
        "seed": options.seed,
        "is_quick": options.quick,
        "only": options.only,
        "missed": missed(BARS, report.values),
        "bars": {bar.key: bar.limit for bar in BARS},
        "notes": report.notes,
        "cases": report.cases,
    }
    lines = [*case_table(report.errors), ""] if report.errors else []
    print("\n".join([*lines, *render(BARS, report.values, report.notes)]))
    # What is not the whole measurement must not pass for it.
    output = options.output or (None if options.quick or options.only else RESULTS)
    if output is not None:
        _write(output, document)
    return 1 if options.strict and missed(BARS, report.values) else 0


if __name__ == "__main__":
    sys.exit(main())
