# SPDX-License-Identifier: Apache-2.0
"""What counts tokens on a metrics page: as each server writes it, and as nobody should."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from fairsched.companion.slis.page import MAX_LINE_BYTES, MAX_SERIES, PageError, Reading, Sieve, counters_of

PAGES = Path(__file__).with_name("pages")
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def read(text: str | bytes, metric: str = "auto", content_type: str = "text/plain; version=0.0.4") -> Reading:
    raw = text.encode() if isinstance(text, str) else text
    sieve = Sieve(counters_of(metric))
    for line in raw.splitlines(keepends=True):
        sieve.feed(line)
    return sieve.read(content_type)


def total(text: str | bytes, metric: str = "auto", content_type: str = "text/plain") -> float:
    return sum(read(text, metric, content_type).series.values())


@pytest.mark.parametrize(
    ("page", "metric", "tokens", "models", "is_steady"),
    [
        ("vllm", "vllm:generation_tokens_total", 1_252_648, {"example/chat-8b"}, True),
        ("sglang", "sglang:generation_tokens_total", 7_557_572, {"example/chat-8b"}, False),
        ("tgi", "tgi_request_generated_tokens_sum", 12_500, set(), False),
        ("triton-tensorrtllm", "nv_llm_output_token_len_sum", 8123, {"tensorrt_llm"}, False),
        ("triton-vllm", "vllm:generation_tokens_total", 16, {"vllm_model"}, True),
        ("trtllm-serve", "trtllm_generation_tokens_total", 930, {"example/chat-8b"}, False),
    ],
)
def test_the_counter_of_each_known_server_is_found_by_itself(
    page: str, metric: str, tokens: float, models: set[str], is_steady: bool
) -> None:
    found = read((PAGES / f"{page}.txt").read_bytes())
    assert (found.metric, sum(found.series.values())) == (metric, tokens)
    assert (found.models, found.is_steady) == (models, is_steady)


def test_every_engine_is_a_series_of_its_own() -> None:
    assert sorted(read((PAGES / "vllm.txt").read_bytes()).series.values()) == [52_000, 1_200_648]


@pytest.mark.parametrize(
    ("metric", "tokens"),
    [
        ('sglang:realtime_tokens_total{mode="decode"}', 7_557_601),
        ("sglang:realtime_tokens", 971_400 + 3_829_888 + 7_557_601),
        ("sglang:generation_tokens", 7_557_572),
    ],
)
def test_a_person_may_name_another_counter_and_its_labels(metric: str, tokens: float) -> None:
    assert total((PAGES / "sglang.txt").read_bytes(), metric) == tokens


@pytest.mark.parametrize("written", ["made", "made_total", "made_sum"])
@pytest.mark.parametrize("on_the_page", ["made", "made_total", "made_sum"])
def test_a_counter_is_found_with_and_without_its_suffix(written: str, on_the_page: str) -> None:
    page = f"{on_the_page} 5\n"
    strangers = {("made_total", "made_sum"), ("made_sum", "made"), ("made_sum", "made_total")}
    if (written, on_the_page) in strangers:
        with pytest.raises(PageError, match="no token counter"):
            read(page, written)
    else:
        assert total(page, written) == 5


@pytest.mark.parametrize("is_openmetrics", [False, True])
def test_both_formats_of_the_client_library_are_read(is_openmetrics: bool) -> None:
    registry = CollectorRegistry()
    counter = Counter("vllm:generation_tokens", "Tokens.", ["model_name", "engine"], registry=registry)
    counter.labels('a "quoted\\ \n name', "0").inc(7.5, {"trace_id": "abc"})
    counter.labels("b", "1").inc(3)
    page = (generate_openmetrics if is_openmetrics else generate_latest)(registry)
    found = read(page, content_type=OPENMETRICS if is_openmetrics else "text/plain")
    assert sorted(found.series.values()) == [3, 7.5]
    assert found.models == {'a "quoted\\ \n name', "b"}


def test_timestamps_and_odd_spaces_do_no_harm() -> None:
    assert total('made_total{a="x y",}\t 12  1700000000000\r\nmade_total{a="}{"} 1e3\n', "made") == 1012


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("", "no token counter"),
        ("made_total_more 5\nmadex 5\nmade_bucket 5\n", "no token counter"),
        ("made_total NaN\n", "not a count"),
        ("made_total -1\n", "not a count"),
        ("made_total +Inf\n", "not a count"),
        ("made_total 1e300\n", "not a count"),
        ("made_total 1\nmade_total 2\n", "twice"),
        ('made_total{a="b",c="d"} 1\nmade_total{c="d",a="b"} 1\n', "twice"),
        ("made_total many\n", "not in the format"),
        ('made_total{a="b 5\n', "not in the format"),
        ("made_total{a=b} 5\n", "not in the format"),
        ("made_total{\n", "not in the format"),
        ("# TYPE made gauge\nmade 5\n", "is a gauge"),
        ("made_total" + " " * MAX_LINE_BYTES + "5\n", "more than 8192 bytes"),
        ("".join(f'made_total{{n="{n}"}} 1\n' for n in range(MAX_SERIES + 1)), "more than 1024 series"),
    ],
)
def test_what_is_no_plain_count_is_refused_with_a_reason(page: str, why: str) -> None:
    with pytest.raises(PageError, match=why):
        read(page, "made")


def test_a_page_with_two_known_counters_is_not_guessed_at() -> None:
    both = (PAGES / "vllm.txt").read_bytes() + (PAGES / "sglang.txt").read_bytes()
    with pytest.raises(PageError, match="several token counters"):
        read(both)
    assert total(both, "sglang:generation_tokens_total") == 7_557_572


def test_an_openmetrics_page_without_its_end_is_no_page() -> None:
    page = b"# TYPE made counter\nmade_total 5\n"
    with pytest.raises(PageError, match="breaks off"):
        read(page, "made", OPENMETRICS)
    assert total(page + b"# EOF\n", "made", OPENMETRICS) == 5


def test_an_error_never_repeats_what_the_page_says() -> None:
    secret = "hunter2"
    for page in (f'made_total{{a="{secret}"}} x\n', f'made_total{{a="{secret}"}} -1\n'):
        with pytest.raises(PageError) as refused:
            read(page, "made")
        assert secret not in str(refused.value)


LINES = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.tuples(
            st.sampled_from([b"made", b"made_total", b"# TYPE made ", b"# EOF"]), st.binary(max_size=40)
        ).map(b"".join),
    ),
    max_size=20,
)


@given(lines=LINES, is_openmetrics=st.booleans())
def test_properties_any_bytes_are_a_count_or_an_error(lines: list[bytes], is_openmetrics: bool) -> None:
    try:
        found = read(b"\n".join(lines) + b"\n", "made", OPENMETRICS if is_openmetrics else "text/plain")
    except PageError as error:
        assert str(error)
    else:
        assert all(value >= 0 for value in found.series.values())
