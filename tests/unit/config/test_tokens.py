# SPDX-License-Identifier: Apache-2.0
"""The keys of token counters: which addresses and metrics may be written, and who may write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.config import Config, check_set, from_bytes, render
from fairsched.config.loader import InvalidConfig
from fairsched.config.tokens import MAX_ALL_URLS, MAX_URLS, Selector, parse_selector
from fairsched.errors import ConfigError

URL = "http://127.0.0.1:8000/metrics"


def config(text: str) -> Config:
    return from_bytes(text.encode(), "f.yaml")


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "https://vllm.example:8443/metrics?format=text",
        "http://[::1]:9000/metrics",
        "http://host",
        "HTTP://host/",
    ],
)
def test_what_may_be_an_address(url: str) -> None:
    assert config(f"tenants: {{a: {{tokens_url: '{url}'}}}}").tenants["a"].tokens_url == (url,)
    assert config(f"tenants: {{a: {{tokens_url: ['{url}']}}}}").tenants["a"].tokens_url == (url,)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("file:///etc/shadow", "begins with http:// or https://"),
        ("ftp://host/x", "begins with http:// or https://"),
        ("unix:///run/docker.sock", "begins with http:// or https://"),
        ("gopher://host:70/", "begins with http:// or https://"),
        ("127.0.0.1:8000/metrics", "begins with|no valid host"),
        ("http://", "names no host"),
        ("http://:8000/metrics", "names no host"),
        ("http://host:0/", "names no host and port"),
        ("http://host:99999/", "no valid host and port"),
        ("http://host:port/", "no valid host and port"),
        ("http://user:hunter2@host/", "no user and password"),
        ("http://host/#top", "no '#'"),
        ("http://host/a b", "printable ASCII"),
        ("http://host/\\r\\nX-Evil: 1", "printable ASCII"),
        ("http://hóst/", "printable ASCII"),
        ("http://host/" + "a" * 2048, "printable ASCII"),
        ("", "printable ASCII"),
    ],
)
def test_what_may_not_be_an_address_is_said_with_key_and_line(written: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why) as refused:
        config(f'tenants:\n  a:\n    tokens_url: "{written}"\n')
    assert str(refused.value).startswith("f.yaml:3: tenants.a.tokens_url")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("written", ["5", "{}", "true", "[5]", f"['{URL}', '{URL}']"])
def test_other_values_are_no_addresses(written: str) -> None:
    with pytest.raises(InvalidConfig, match=r"tenants\.a\.tokens_url"):
        config(f"tenants: {{a: {{tokens_url: {written}}}}}")


def urls(count: int, name: str = "h") -> str:
    return "[" + ", ".join(f"'http://{name}{n}/m'" for n in range(count)) + "]"


def test_there_are_not_too_many() -> None:
    assert (
        len(config(f"tenants: {{a: {{tokens_url: {urls(MAX_URLS)}}}}}").tenants["a"].tokens_url) == MAX_URLS
    )
    with pytest.raises(InvalidConfig, match="tokens_url"):
        config(f"tenants: {{a: {{tokens_url: {urls(MAX_URLS + 1)}}}}}")
    many = MAX_ALL_URLS // MAX_URLS + 1
    with pytest.raises(InvalidConfig, match=f"at most {MAX_ALL_URLS} are read"):
        config(
            "tenants:\n"
            + "".join(f"  t{n}: {{tokens_url: {urls(MAX_URLS, f'h{n}-')}}}\n" for n in range(many))
        )


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("made_total", Selector("made_total")),
        ("vllm:generation_tokens_total", Selector("vllm:generation_tokens_total")),
        ("a{}", Selector("a")),
        (' a{ b = "c d" , e="f,}{=",}', Selector("a", (("b", "c d"), ("e", "f,}{=")))),
    ],
)
def test_what_may_be_a_metric(text: str, selector: Selector) -> None:
    assert parse_selector(text) == selector


@pytest.mark.parametrize(
    "text", ["", "1a", "a b", "a{b}", "a{b=c}", 'a{b="c"d="e"}', 'a{b="c"', "a" * 600, 'a{b=~"c"}']
)
def test_what_may_not_be_a_metric(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_selector(text)


@given(st.text(alphabet='ab1:_{}="\\, \né', max_size=40))
def test_properties_any_text_is_a_metric_or_an_error(text: str) -> None:
    try:
        assert parse_selector(text).name
    except ValueError as error:
        assert str(error)


def test_a_metric_that_is_none_is_said_with_key_and_line() -> None:
    with pytest.raises(InvalidConfig, match="is not a metric") as refused:
        config(f"tenants:\n  a:\n    tokens_url: {URL}\n    tokens_metric: 'a b'\n")
    assert str(refused.value).startswith("f.yaml:4: tenants.a.tokens_metric")


@pytest.mark.parametrize("cost", ["0", "-1", ".inf", "cheap", "1000001"])
def test_a_token_costs_something(cost: str) -> None:
    with pytest.raises(InvalidConfig, match=r"tenants\.a\.token_cost_ms"):
        config(f"tenants: {{a: {{tokens_url: '{URL}', token_cost_ms: {cost}}}}}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: {tokens_metric: made}", "without a tokens_url"),
        ("a: {token_cost_ms: 3}", "without a tokens_url"),
        (f"a: {{tokens_url: '{URL}', children: {{b: {{}}}}}}", "its children get the GPU time"),
        (f"a: {{children: {{'b*': {{tokens_url: '{URL}'}}}}}}", "any number of tenants"),
        (f"a: {{tokens_url: '{URL}'}}, b: {{tokens_url: '{URL}'}}", "those of tenant 'a'"),
    ],
)
def test_tokens_belong_to_one_tenant(text: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        config(f"tenants: {{{text}}}")


def test_one_page_may_tell_of_several_tenants_by_its_labels() -> None:
    one, other = (f"{{tokens_url: '{URL}', tokens_metric: 'made{{user=\"{name}\"}}'}}" for name in "ab")
    assert len(config(f"tenants: {{a: {one}, b: {other}}}").tenants) == 2


def test_a_child_with_a_plain_name_may_have_its_own() -> None:
    assert (
        config(f"tenants: {{a: {{children: {{b: {{tokens_url: '{URL}'}}}}}}}}")
        .tenants["a"]
        .children["b"]
        .tokens_url
    )


def test_who_may_not_write_the_file_names_no_address() -> None:
    """Members of the group may `tenant set`; an address would have root ask it."""
    for key in ("tokens_url", "tokens_metric", "token_cost_ms"):
        with pytest.raises(ConfigError, match="cannot be changed at run time"):
            check_set("a", {key: URL}, config("tenants: {a: {}}"))


def test_what_is_in_force_can_be_read_back() -> None:
    """The companion learns its addresses that way."""
    text = f"""
slis: {{window_s: 30}}
tenants:
  a: {{tokens_url: ['{URL}', 'https://h/m?a=b'], tokens_metric: 'made{{a="b\\'c"}}', token_cost_ms: 2.5}}
  b: {{}}
"""
    text = text.replace("\\'", "''")
    before = config(text)
    after = from_bytes(render(before).encode(), "again")
    for name in ("a", "b"):
        for key in ("tokens_url", "tokens_metric", "token_cost_ms"):
            assert getattr(after.tenants[name], key) == getattr(before.tenants[name], key)
    assert after.slis == before.slis
    assert before.tenants["a"].tokens_metric == 'made{a="b\'c"}'
