# SPDX-License-Identifier: Apache-2.0
"""Makes names that tenants choose fit to be written (pure).

A cgroup, a file and a process may be called anything but NUL and slash: bytes that are no UTF-8 (os.fsdecode makes
lone surrogates of them, which no strict encoder takes), escape sequences, marks that turn the direction of writing.
What the kernel is asked with stays as it is; what a person, a log or a database gets goes through here.
"""

from __future__ import annotations

_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF
"""Of the surrogates that stand for bytes that are no UTF-8 (PEP 383)."""


def printable(text: str) -> str:
    """``text`` with a backslash escape for each character that is not printable; it can always be encoded."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def word(text: str) -> str:
    """One value of a logfmt line: quoted where something in it could end the value and begin another."""
    is_quoted = not text or any(char.isspace() or char in "\"'=" for char in text)
    return repr(text) if is_quoted else printable(text)


def _escape(char: str) -> str:
    if _FIRST_BYTE <= ord(char) <= _LAST_BYTE:
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")
