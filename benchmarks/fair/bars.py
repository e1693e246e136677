# SPDX-License-Identifier: Apache-2.0
"""What the figures must reach, as data, and who judges them (pure).

Problem. A bar that is worded in prose can be read kindly. And a figure that is missing must not look like one
that is met.

Approach. A bar names scenarios, a figure, whose figure it is (``Of``), a limit and its side. ``judge`` takes the
documents of all seeds, forms the value of each seed, and compares their mean. The verdict is ``met``, ``missed``
or ``not measured``; what was never detected is missed, with an endless time. A value against ``none`` is
formed seed by seed with the run of the same seed. And every scenario has a bar that is only shown where it is missed:
no tenant is called names that has done nothing (``NAMED_WRONGLY``).

Terms. scale: see ``show``. hostile leaf: one with ``gain_points``.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.bars import Side
from benchmarks.fair.account import LEAST_SHARE_RATIO
from benchmarks.fair.results import Document, leaf_values, whole
from benchmarks.stats import Spread, spread

OURS = "fairsched"
BASELINE = "none"
QUARTER = 0.25
QUARTER_WITHIN = 0.05
UNSURE_RATIO = 0.8
"""Of the samples must say low confidence before an account may be wrong ..."""
UNSURE_HELD_MS_PER_S = 50.0
"""... and then its tenant is not held: more than this is enforcing on noise."""
NATURE_POINTS = 5.0
"""Share error on GPUs that nobody described. On the one that the account assumes the same mix is 2 to 3 points off: a
third of its GPU is lent and taken back at each burst."""
GAIN = "gain by the trick"
LOSS_POINTS = 5.0
"""Below its due a tenant that is called hostile here may be: who plays a trick by accident is held, and not starved.
They are owed a ninth of the GPU, and plays are short."""
GAIN_WITHOUT_BAR = ("beyond-*", "escape-*", "silent-*")
"""Scenarios of what cannot be held, or not be seen well enough to be: the gain is shown, and no equal turns pass for
a bar that is met."""


class Of(Enum):
    """Whose figure is compared."""

    WHOLE = "the run"
    WORST_LEAF = "the worst tenant"
    QUARTER_LEAF = "the tenant entitled to .25"
    LONE_LEAF = "the tenant that works alone"
    HOSTILE_LEAVES = "every hostile tenant"
    SURE_LEAVES = "tenants of high confidence and a tenth of the GPU"
    NOT_HOSTILE_LEAVES = "every tenant that is not hostile"


@dataclass(frozen=True)
class Bar(Side):
    """One row of what was promised."""

    scenarios: str
    """A glob."""
    figure: str
    limit: float
    what: str
    """At most 24 characters: it is a line of a table."""
    of: Of = Of.WHOLE
    is_upper: bool = True
    """True: at most ``limit``; False: at least."""
    against_none: bool = False
    """The figure divided by the one without a policy."""

    @property
    def scale(self) -> str:
        return "ratio" if self.against_none else scale_of(self.figure)

    def limit_text(self) -> str:
        """``<= 1.00 pt``"""
        # A limit is a round number: its zeros say nothing.
        number, _, unit = show(self.limit, self.scale).partition(" ")
        number = number.rstrip("0").rstrip(".") if "." in number else number
        return f"{self.sign} {number}{' ' * bool(unit)}{unit}"


_SHARED = (
    "caps-on-off",
    "graphs",
    "longkernel-*",
    "min-beside-heavy",
    "nested",
    "quota-below-share",
    "tenants-32",
)
_EXACT = ("weights-4211", "caps-30-70", "caps-10-90", "servers-vs-trainer")
BARS = (
    Bar("seed-4", "tokens_cv_across_ratio", 0.015, "token/s CV over tenants"),
    Bar("seed-4", "busy_ratio", 0.98, "GPU busy against none", is_upper=False, against_none=True),
    Bar("equal-4", "tokens_cv_ratio", 0.03, "token/s CV, worst tenant", Of.WORST_LEAF),
    *(
        bar
        for name in _EXACT
        for bar in (
            Bar(name, "share_error_max_points", 1.0, "share error, largest"),
            Bar(name, "jain_1s_mean", 0.98, "Jain, 1 s, mean", is_upper=False),
            Bar(name, "jain_10s_mean", 0.995, "Jain, 10 s, mean", is_upper=False),
        )
    ),
    Bar("latency-vs-batch*", "step_p99_ms", 100.0, "p99 step of the .25", Of.QUARTER_LEAF),
    Bar("latency-vs-batch*", "hold_longest_ms", 500.0, "longest hold of anybody"),
    Bar("bursty-owner*", "take_back_beyond_drain_p95_ms", 50.0, "take-back beyond drain"),
    Bar(
        "idle-lending*",
        "tokens_per_s",
        0.985,
        "alone, against none",
        Of.LONE_LEAF,
        is_upper=False,
        against_none=True,
    ),
    *(Bar(name, "share_error_max_points", 1.0, "share error, largest") for name in _SHARED),
    Bar("hostile-*", "gain_points", 2.0, GAIN, Of.HOSTILE_LEAVES),
    Bar("hostile-*", "gain_points", -LOSS_POINTS, "not starved for it", Of.HOSTILE_LEAVES, is_upper=False),
    Bar("beyond-*", "misbehaviour_after_s", 5.0, "detected after", Of.HOSTILE_LEAVES),
    Bar("beyond-endless*", "misbehaviour_gone_after_s", 6.0, "gone after being named", Of.HOSTILE_LEAVES),
    # It does nothing forbidden, so it is not accused: its note in `status` says why nobody can be sure of it.
    Bar("hostile-pinned", "unsure_after_s", 5.0, "said to be unsure after", Of.HOSTILE_LEAVES),
    Bar("escape-*", "misbehaviour_after_s", 5.0, "detected after", Of.HOSTILE_LEAVES),
    Bar("two-gpus*", "share_error_max_points", 1.5, "share error of any GPU"),
    Bar("nature-*", "share_error_max_points", NATURE_POINTS, "share error, largest"),
    Bar("nature-*", "account_error_ratio", 0.05, "account error where sure", Of.SURE_LEAVES),
)
_NEVER = {
    "misbehaviour_after_s": "detected",
    "misbehaviour_gone_after_s": "gone",
    "unsure_after_s": "said to be unsure",
}
"""Of a time that is not there: what did not come to pass."""
NAMED_WRONGLY = Bar("*", "misbehaviour_count", 0.0, "tenants named wrongly", Of.NOT_HOSTILE_LEAVES)


@dataclass(frozen=True)
class Verdict:
    """A bar on a scenario."""

    bar: Bar
    scenario: str
    """The bar's glob where no scenario of that name is known."""
    value: Spread | None
    """Over the seeds; a mean without end where something was never detected."""
    without: Spread | None
    """The same under ``none``; of a bar against none: None."""
    is_met: bool | None
    """None: not measured."""
    note: str = ""
    was_played: bool = False

    @property
    def state(self) -> str:
        return {None: "not measured", True: "met", False: "missed"}[self.is_met]

    @property
    def is_missed(self) -> bool:
        return self.is_met is False

    def to_dict(self) -> dict[str, object]:
        """For a document."""
        mean = self.value.mean if self.value and math.isfinite(self.value.mean) else None
        return {
            "scenario": self.scenario,
            "figure": self.bar.figure,
            "what": self.bar.what,
            "bar": self.bar.limit_text(),
            "value": mean,
            "state": self.state,
            "note": self.note,
        }


def judge(
    documents: Iterable[Document], names: Iterable[str] = (), policy: str = OURS, bars: Sequence[Bar] = BARS
) -> list[Verdict]:
    """Every bar on every scenario that has it; ``names``: scenarios that may not have been measured."""
    listed = list(documents)
    known = sorted({*names, *(document["scenario"] for document in listed)})
    verdicts = []
    for bar in bars:
        for name in fnmatch.filter(known, bar.scenarios) or [bar.scenarios]:
            verdicts.append(_verdict(bar, name, [d for d in listed if d["scenario"] == name], policy))
    named = [
        _verdict(NAMED_WRONGLY, name, [d for d in listed if d["scenario"] == name], policy) for name in known
    ]
    return verdicts + [verdict for verdict in named if verdict.is_missed]


def missed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """For --strict: also what was played and is not known in every seed."""
    return [one for one in verdicts if one.is_missed or (one.is_met is None and one.was_played)]


def _verdict(bar: Bar, name: str, documents: Sequence[Document], policy: str) -> Verdict:
    ours = [document for document in documents if document["policy"] == policy]
    without = {document["seed"]: document for document in documents if document["policy"] == BASELINE}
    taken = [_take(bar, document, without.get(document["seed"])) for document in ours]
    notes = dict.fromkeys(note for _, note in taken if note)
    value = spread(value for value, _ in taken)
    is_met = bar.is_met(value.mean if value else None)
    wanted = [d for d in ours if not (bar.of is Of.SURE_LEAVES and _is_excused(d))]
    if ours and not wanted:
        is_met = True
    elif is_met and value and value.seeds < len(wanted):
        # A mean over the seeds that happen to have a figure is not what was promised.
        is_met = None
        notes[f"known in {value.seeds} of {len(wanted)} seeds only"] = None
    before = None
    if not bar.against_none:
        before = spread(_take(bar, document, None)[0] for document in without.values())
    return Verdict(bar, name, value, before, is_met, "; ".join(notes), was_played=bool(ours))


def _take(bar: Bar, document: Document, without: Document | None) -> tuple[float | None, str]:
    """The value of one seed, and what is to be said about it."""
    if bar.against_none and without is None:
        return None, f"seed {document['seed']} was not run under {BASELINE}"
    value, note = _TAKE[bar.of](bar, document, without)
    if not bar.against_none or value is None or without is None:
        return value, note
    base, _ = _TAKE[bar.of](bar, without, without)
    return (value / base if base else None), note


def _take_whole(bar: Bar, document: Document, _without: Document | None) -> tuple[float | None, str]:
    value = whole(document, bar.figure)
    if value is None and bar.figure == "hold_longest_ms" and whole(document, "held_ms_per_s") == 0:
        return 0.0, "nobody was held"
    return value, ""


def _take_worst(bar: Bar, document: Document, _without: Document | None) -> tuple[float | None, str]:
    values = leaf_values(document, bar.figure)
    known = [value for value in values.values() if value is not None]
    if not known or len(known) < len(values):
        return None, ""
    return (max(known) if bar.is_upper else min(known)), ""


def _take_quarter(bar: Bar, document: Document, _without: Document | None) -> tuple[float | None, str]:
    due = {leaf: v for leaf, v in leaf_values(document, "entitlement_ratio").items() if v is not None}
    near = [leaf for leaf, value in due.items() if abs(value - QUARTER) <= QUARTER_WITHIN]
    if len(near) != 1:
        return None, f"{len(near)} tenants are entitled to .25"
    return leaf_values(document, bar.figure)[near[0]], ""


def _take_lone(bar: Bar, document: Document, without: Document | None) -> tuple[float | None, str]:
    """The leaf is chosen where nobody schedules, so that no policy can choose whom it is judged by."""
    shares = leaf_values(without or document, "share_ratio")
    known = {leaf: share for leaf, share in shares.items() if share is not None}
    if not known:
        return None, ""
    leaf = max(known, key=lambda name: known[name])
    return leaf_values(document, bar.figure).get(leaf), ""


def hostile_leaves(document: Document) -> list[str]:
    """Those whose gain is reported."""
    return [leaf for leaf, gain in leaf_values(document, "gain_points").items() if gain is not None]


def _take_hostile(bar: Bar, document: Document, _without: Document | None) -> tuple[float | None, str]:
    leaves = hostile_leaves(document)
    if not leaves:
        return None, "no hostile tenant"
    values = [leaf_values(document, bar.figure)[leaf] for leaf in leaves]
    if bar.figure in _NEVER and all(bar.figure in document["measures"]["leaves"][leaf] for leaf in leaves):
        never = [leaf for leaf, value in zip(leaves, values, strict=True) if value is None]
        if never:
            return math.inf, f"never {_NEVER[bar.figure]}: {', '.join(never)} (seed {document['seed']})"
    known = [value for value in values if value is not None]
    return ((max if bar.is_upper else min)(known) if known else None), ""


def _take_not_hostile(_bar: Bar, document: Document, _without: Document | None) -> tuple[float | None, str]:
    after = leaf_values(document, "misbehaviour_after_s")
    named = sorted({leaf for leaf, value in after.items() if value is not None} - {*hostile_leaves(document)})
    return float(len(named)), f"{', '.join(named)} (seed {document['seed']})" if named else ""


def unsure_leaves(document: Document) -> set[str]:
    """Of low confidence and, as it must then be, not held."""
    low = leaf_values(document, "low_confidence_ratio")
    held = leaf_values(document, "held_ms_per_s")
    return {
        leaf
        for leaf, ratio in low.items()
        if ratio is not None and ratio >= UNSURE_RATIO and (held[leaf] or 0.0) <= UNSURE_HELD_MS_PER_S
    }


def _sure_errors(document: Document) -> dict[str, float | None]:
    """Account errors of the leaves that are judged. Who is unsure and not held is judged by the while in which it was
    sure, if there was one. Who is neither, likewise; but no sure while excuses one that is held on an unsure account.
    """
    unsure, low = unsure_leaves(document), leaf_values(document, "low_confidence_ratio")
    shares = leaf_values(document, "share_ratio")
    while_sure = leaf_values(document, "account_error_sure_ratio")
    found = {}
    for leaf, error in leaf_values(document, "account_error_ratio").items():
        if _is_below(shares[leaf], LEAST_SHARE_RATIO) or (leaf in unsure and while_sure[leaf] is None):
            continue
        is_held_on_it = leaf not in unsure and (low[leaf] or 0.0) >= UNSURE_RATIO
        found[leaf] = error if is_held_on_it or while_sure[leaf] is None else while_sure[leaf]
    return found


def _is_excused(document: Document) -> bool:
    return bool(unsure_leaves(document)) and not _sure_errors(document)


def _is_below(value: float | None, least: float) -> bool:
    return value is not None and value < least


def _take_sure(_bar: Bar, document: Document, _without: Document | None) -> tuple[float | None, str]:
    unsure, errors = unsure_leaves(document), _sure_errors(document)
    note = f"confidence low, not held: {', '.join(sorted(unsure))}" if unsure else ""
    known = [abs(error) for error in errors.values() if error is not None]
    return (max(known) if known and len(known) == len(errors) else None), note


_Take = Callable[[Bar, Document, "Document | None"], "tuple[float | None, str]"]
_TAKE: Mapping[Of, _Take] = {
    Of.WHOLE: _take_whole,
    Of.WORST_LEAF: _take_worst,
    Of.QUARTER_LEAF: _take_quarter,
    Of.LONE_LEAF: _take_lone,
    Of.HOSTILE_LEAVES: _take_hostile,
    Of.SURE_LEAVES: _take_sure,
    Of.NOT_HOSTILE_LEAVES: _take_not_hostile,
}


# ---- how figures are written ----

_SCALES = {"busy_ratio": "percent", "jain": "ratio", "tokens_per_s": "rate", "held_ms_per_s": "ms/s"}
_BY_SUFFIX = {
    "_vs_solo_ratio": "times",
    "_ratio": "percent",
    "_points": "points",
    "_ms": "ms",
    "_ns": "ns",
    "_bytes": "bytes",
    "_after_s": "s",
    "_unsettled_s": "s",
    "_count": "count",
}


def scale_of(figure: str) -> str:
    """Told by the unit in its name."""
    for start, scale in _SCALES.items():
        if figure.startswith(start):
            return scale
    return next((scale for suffix, scale in _BY_SUFFIX.items() if figure.endswith(suffix)), "ratio")


_FACTOR_AND_UNIT: Mapping[str, tuple[float, str]] = {
    "percent": (100.0, "%"),
    "points": (1.0, "pt"),
    "ms": (1.0, "ms"),
    "ns": (1e-6, "ms"),
    "bytes": (1e-6, "MB"),
    "s": (1.0, "s"),
    "rate": (1.0, "/s"),
    "ms/s": (1.0, "ms/s"),
    "times": (1.0, "x"),
    "count": (1.0, ""),
    "ratio": (1.0, ""),
}


def unit_of(scale: str) -> str:
    return _FACTOR_AND_UNIT[scale][1]


def number(value: float | None, scale: str) -> str:
    """Without its unit. '-' for what was not measured, 'never' for what has no end."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "never"
    scaled = value * _FACTOR_AND_UNIT[scale][0]
    if scale == "ratio":
        return f"{scaled:.4f}"
    digits = 2 if abs(scaled) < 100 else 1 if abs(scaled) < 1000 else 0
    return f"{scaled:.{digits}f}"


def show(value: float | None, scale: str) -> str:
    """With its unit, as a person wants to read it."""
    text, unit = number(value, scale), unit_of(scale)
    return f"{text} {unit}" if unit and text not in ("-", "never") else text
