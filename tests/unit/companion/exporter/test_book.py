# SPDX-License-Identifier: Apache-2.0
"""The two formats: what is written here is what the library that defines them writes of the same rows."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition, parser
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as open_exposition
from prometheus_client.openmetrics import parser as open_parser

from fairsched.base import buckets
from fairsched.companion.exporter.book import OPENMETRICS, TEXT, Book, write
from fairsched.companion.exporter.catalogue import BY_NAME
from fairsched.companion.exporter.family import BOUNDS, BUCKETS, Family, Kind
from fairsched.companion.exporter.readings import Own, read
from fairsched.companion.exporter.reference import reference
from fairsched.protocol.own import Histogram
from tests.conftest import is_node_required
from tests.unit.companion.exporter import made_reports
from tests.unit.repo.tree import ROOT

OWN = Own({"200": 1}, {"too_slow": 1}, 0.01, 0.5)


def book() -> Book:
    found = read(made_reports.full(), OWN)
    found.add("fairsched_gpu", ("GPU-\\x", "", 'a "name"\nof two lines'), 1)
    found.add_histogram("fairsched_queue_delay_seconds", ("100% %d", 'a "b"'), made_reports.DELAYS)
    return found


class Library:
    """The same rows as the library's objects."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def collect(self) -> Iterator[Metric]:
        for name, family in BY_NAME.items():
            rows = self._book.rows.get(name)
            if rows is not None:
                yield self._of(family, rows)
            histograms = self._book.histograms.get(name)
            if histograms is not None:
                yield self._histogram(family, histograms)

    @staticmethod
    def _of(family: Family, rows: list[tuple[tuple[str, ...], float]]) -> Metric:
        if family.kind is Kind.INFO:
            info = InfoMetricFamily(family.name, family.help)
            for labels, _ in rows:
                info.add_metric([], dict(zip(family.labels, labels, strict=True)))
            return info
        make = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
        found = make(family.name, family.help, labels=family.labels, unit=family.unit)
        for labels, value in rows:
            found.add_metric(list(labels), value)
        return found

    @staticmethod
    def _histogram(family: Family, rows: list[tuple[tuple[str, ...], Histogram]]) -> Metric:
        found = HistogramMetricFamily(family.name, family.help, labels=family.labels, unit=family.unit)
        for labels, value in rows:
            counts = value.cumulative(BUCKETS)
            buckets = [*zip(BOUNDS, counts, strict=True), ("+Inf", value.total)]
            found.add_metric(list(labels), buckets, value.sum_s)
        return found


Parse = Callable[[str], Iterator[Metric]]


@pytest.mark.parametrize(
    ("content_type", "parse", "generate"),
    [
        (TEXT, parser.text_string_to_metric_families, exposition.generate_latest),
        (OPENMETRICS, open_parser.text_string_to_metric_families, open_exposition.generate_latest),
    ],
)
def test_what_is_written_is_what_the_library_writes(
    content_type: str, parse: Parse, generate: Callable[[Library], bytes]
) -> None:
    mine = list(parse(write(book(), content_type).decode()))
    theirs = list(parse(generate(Library(book())).decode()))

    def told(metrics: list[Metric]) -> dict[str, object]:
        return {
            one.name: (one.type, one.unit, one.documentation, {_sample(sample) for sample in one.samples})
            for one in metrics
        }

    assert told(mine) == told(theirs)
    assert len(mine) > 60


def _sample(sample: object) -> object:
    name, labels, value = sample[:3]  # type: ignore[index]
    return name, tuple(sorted(labels.items())), value


def test_a_page_without_rows_is_a_page() -> None:
    assert write(Book(), TEXT) == b""
    assert write(Book(), OPENMETRICS) == b"# EOF\n"


def test_a_name_that_is_no_text_does_not_spoil_the_page() -> None:
    page = Book()
    page.add("fairsched_gpu", ("GPU-a", "0", "broken \udcff name"), 1)
    assert rb"broken \\udcff name" in write(page, TEXT)


@given(st.lists(st.integers(0, 2**45), max_size=60))
def test_each_bound_counts_what_was_shorter(durations: list[int]) -> None:
    counted = [0] * buckets.COUNT
    for ns in durations:
        counted[buckets.bucket_of(ns)] += 1
    histogram = Histogram.of(counted, sum(durations))
    assert histogram.total == len(durations)
    assert histogram.cumulative(BUCKETS) == [
        sum(ns < round(float(bound) * 1e9) for ns in durations) for bound in BOUNDS
    ]


def test_the_bounds_are_seconds_and_go_up() -> None:
    values = [float(bound) for bound in BOUNDS]
    assert values[0] == pytest.approx(262.144e-6)
    assert all(low < high <= 2.0001 * low for low, high in pairwise(values))
    assert values[-1] > 30


def test_bounds_around_the_limit_of_a_queue_delay_are_a_quarter_apart() -> None:
    near = [float(bound) for bound in BOUNDS if 0.009 < float(bound) < 0.134]
    assert len(near) > 12
    assert all(high <= 1.25 * low for low, high in pairwise(near))


def test_every_family_has_a_help_that_helps_and_a_unit_that_is_in_its_name() -> None:
    for family in BY_NAME.values():
        assert family.name.startswith("fairsched_"), family.name
        assert family.help.endswith("."), family.name
        assert len(family.help) > 15, family.name
        assert not family.unit or family.name.endswith(f"_{family.unit}"), family.name
        assert not family.name.endswith(("_total", "_info", "_ms", "_ns", "_us")), family.name
        assert len(set(family.labels)) == len(family.labels)


def test_the_page_of_metrics_is_that_of_the_catalogue() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert text == reference(), "run: python -m fairsched.companion.exporter.reference > docs/metrics.md"


def test_promtool_finds_no_fault() -> None:
    """It reads the text format only; for OpenMetrics the library's parser, which is strict, is the judge."""
    if shutil.which("promtool") is None:
        why = "promtool is not installed: apt-get install prometheus, or: sudo make setup"
        if is_node_required():
            pytest.fail(why)
        pytest.skip(why)
    page = write(read(made_reports.full(), OWN), TEXT)
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("content_type", "parse"),
    [
        (TEXT, parser.text_string_to_metric_families),
        (OPENMETRICS, open_parser.text_string_to_metric_families),
    ],
)
def test_two_names_that_are_no_text_are_two_series(content_type: str, parse: Parse) -> None:
    page = Book()
    for name in ("\udcff", "\udcfe"):
        page.add("fairsched_weight", (name,), 1.0)
    (family,) = parse(write(page, content_type).decode())
    assert [sample.labels["tenant"] for sample in family.samples] == [r"\udcff", r"\udcfe"]
