# SPDX-License-Identifier: Apache-2.0
"""YAML is read strictly, with the line of everything."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairsched.config import yamlfile
from fairsched.config.yamlfile import dotted, parse
from fairsched.errors import ConfigError

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure of the code."""


def refused(text: str | bytes) -> ConfigError:
    raw = text.encode() if isinstance(text, str) else text
    with pytest.raises(ConfigError) as caught:
        parse(raw, "f.yaml")
    assert str(caught.value).startswith("f.yaml")
    assert caught.value.remedy
    return caught.value


def test_off_and_no_are_words_and_only_true_and_false_are_booleans() -> None:
    document = parse(b"{a: off, b: no, c: yes, d: on, e: true, f: False}", "f")
    assert document.data == {"a": "off", "b": "no", "c": "yes", "d": "on", "e": True, "f": False}


def test_numbers_are_decimal_and_quoted_numbers_are_words() -> None:
    document = parse(b"{a: 12, b: 0.5, c: 1e3, d: '7', e: 12:30, f: 010, g: 1_000, h: .inf}", "f")
    assert document.data == {
        "a": 12,
        "b": 0.5,
        "c": 1000.0,
        "d": "7",
        "e": "12:30",
        "f": 10,
        "g": "1_000",
        "h": ".inf",
    }


def test_the_second_of_two_equal_keys_is_an_error_that_names_both_lines() -> None:
    error = refused("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n")
    assert error.file == "f.yaml:5"
    assert error.key == "b.c"
    assert "line 3" in str(error)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: &x [1]\nb: *x\n", 1, "anchor"),
        ("a: 1\nb: *x\n", 2, "alias"),
        ("a: !!python/object:os.system x\n", 1, "tag"),
        ("a: !!binary aGk=\n", 1, "tag"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a:\n\tb: 1\n", 2, "tab"),
        ("? [a]\n: 1\n", 1, "key"),
        ("a: [1\nb: 2\n", 2, ""),
        ("a: " + "9" * 5000 + "\n", 1, "absurd"),
    ],
)
def test_what_a_plain_file_never_needs_is_refused(text: str, line: int, says: str) -> None:
    error = refused(text)
    assert says in str(error)
    assert error.file == f"f.yaml:{line}"


def test_billion_laughs_ends_at_the_first_anchor() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
    )
    assert "anchor" in str(refused(bomb))


def test_deep_nesting_is_an_error_not_a_recursion() -> None:
    """By us, or by a libyaml from 0.2.6 on."""
    assert re.search("levels|nesting depth", str(refused("[" * 100_000)))


def test_not_utf8_names_the_line() -> None:
    assert refused(b"a: 1\nb: \xff\n").file == "f.yaml:2"


def test_a_file_over_a_megabyte_is_not_even_parsed() -> None:
    assert "more than" in str(refused(b"a: " + b"x" * yamlfile.MAX_BYTES))


def test_control_characters_are_refused() -> None:
    refused(b"a: \x00\n")
    refused(b"a: \x1b[31m\n")


def test_keys_and_items_know_their_lines() -> None:
    document = parse(b"a:\n  b:\n    - x\n    - y\n", "f")
    assert document.line_of(("a", "b", 1)) == 4
    assert document.line_of(("a", "b", 1, "deeper")) == 4
    assert document.line_of(("z",)) is None


def test_a_key_path_reads_like_the_file() -> None:
    assert dotted(("tenants", "chat", "cgroup", 0)) == "tenants.chat.cgroup[0]"


@given(st.binary(max_size=300))
@LOADED
def test_any_bytes_give_a_document_or_a_config_error(raw: bytes) -> None:
    try:
        parse(raw, "f")
    except ConfigError as error:
        assert error.exit_status == 2


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(st.characters(codec="ascii"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="ascii"), max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(PLAIN)
@LOADED
def test_what_another_library_writes_is_read_back(value: object) -> None:
    written = yaml.safe_dump(value, default_style='"' if isinstance(value, str) else None)
    try:
        found = parse(written.encode(), "f").data
    except ConfigError as error:
        # the only plain values refused: nesting, keys that only YAML 1.1 writes in longer form
        assert any(word in str(error) for word in ("levels", "tag", "key"))
        return
    assert found == value
