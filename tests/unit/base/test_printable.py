# SPDX-License-Identifier: Apache-2.0
"""Names that tenants choose, as they are written."""

from __future__ import annotations

import ast
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.base.printable import printable, word
from fairsched.protocol.events import logfmt


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"docker-abc.scope", "docker-abc.scope"),
        (b"dev-disk-by\\x2did", "dev-disk-by\\x2did"),  # as systemd writes a hyphen
        ("größe".encode(), "größe"),
        (b"a\xffb", "a\\xffb"),
        (b"\x1b[2Jclean", "\\x1b[2Jclean"),
        (b"a\rlevel=error\n", "a\\rlevel=error\\n"),
        ("abc\u202egpj".encode(), "abc\\u202egpj"),  # shown from right to left it would end in another name
    ],
)
def test_what_cannot_be_printed_is_escaped(name: bytes, shown: str) -> None:
    assert printable(os.fsdecode(name)) == shown


@given(st.binary())
def test_any_name_becomes_one_line_that_every_encoder_takes(name: bytes) -> None:
    shown = printable(os.fsdecode(name))
    assert shown.isprintable()
    assert shown.encode().decode() == shown


@given(st.binary())
def test_a_value_in_a_line_of_the_log_ends_where_it_ends(name: bytes) -> None:
    text = word(os.fsdecode(name))
    assert text.isprintable()
    if text[0] in "\"'":
        assert ast.literal_eval(text) == os.fsdecode(name)
    else:
        assert not set(text) & set(" \"'=")


def test_a_tenant_adds_no_field_to_a_line() -> None:
    assert logfmt({"tenant": "a decision=thaw", "held_ms": 1.5}) == "tenant='a decision=thaw' held_ms=1.5"
