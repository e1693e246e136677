# SPDX-License-Identifier: Apache-2.0
"""Who is alone on a GPU: whoever may work there keeps all others from being."""

from __future__ import annotations

from fairsched.accounting.company import Company

ONE, TWO, OTHER = (0, 1), (1, 1), (2, 1)


def test_one_is_alone_from_when_the_last_other_left() -> None:
    company = Company()
    company.note(ONE, "chat", 10, is_there=True)
    assert company.is_alone("chat", 10) and not company.is_alone("chat", 9)
    company.note(OTHER, "train", 20, is_there=True)
    assert not company.is_alone("chat", 20) and not company.is_alone("train", 20)
    company.note(OTHER, "train", 30, is_there=False)
    assert company.is_alone("chat", 30) and not company.is_alone("chat", 29)


def test_the_processes_of_a_tenant_are_no_company() -> None:
    company = Company()
    company.note(ONE, "chat", 10, is_there=True)
    company.note(TWO, "chat", 20, is_there=True)
    company.note(ONE, "chat", 30, is_there=False)
    assert company.is_alone("chat", 10)


def test_an_empty_gpu_is_still_that_of_the_last() -> None:
    """A decoder between two tokens."""
    company = Company()
    company.note(ONE, "chat", 10, is_there=True)
    company.note(ONE, "chat", 20, is_there=False)
    company.note(ONE, "chat", 21, is_there=True)
    assert company.is_alone("chat", 10)
    company.note(ONE, "chat", 30, is_there=False)
    company.note(OTHER, "train", 31, is_there=True)
    assert company.is_alone("train", 31) and not company.is_alone("chat", 10)


def test_saying_it_twice_is_saying_it_once() -> None:
    company = Company()
    for now_ns in (10, 11):
        company.note(ONE, "chat", now_ns, is_there=True)
    company.note(ONE, "moved", 12, is_there=False)
    company.note(ONE, "moved", 13, is_there=False)
    company.note(OTHER, "train", 14, is_there=True)
    assert company.is_alone("train", 14)


def test_whose_a_context_is_may_become_known_while_it_works() -> None:
    """Counted for its cgroup all the time, it would keep its own tenant from being alone."""
    company = Company()
    company.note(ONE, "chat", 10, is_there=True)
    company.note(TWO, 55, 20, is_there=True)
    assert not company.is_alone("chat", 20)
    company.note(TWO, "chat", 30, is_there=True)
    assert company.is_alone("chat", 30) and not company.is_alone("chat", 29)
    company.note(TWO, None, 40, is_there=False)
    company.note(ONE, None, 50, is_there=False)
    company.note(OTHER, "train", 60, is_there=True)
    assert company.is_alone("train", 60)
