# SPDX-License-Identifier: Apache-2.0
"""Filters choose what they say, and nobody of whom they do not know it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairsched.protocol.process import ProcessStatus
from fairsched.reclaim.expression import FilterError, both, parse
from fairsched.reclaim.holder import Holder
from tests.unit.reclaim.made import GPU, holder, process

ANN = replace(
    holder(process(10), vram_bytes=20 << 30, age_s=7200.0, is_orphan=True),
    status=ProcessStatus(
        10,
        GPU,
        cgroup="/a",
        tenant="chat",
        container_id="3f" * 32,
        known_as="pod ml/llama-0",
        vram_bytes=20 << 30,
        idle_s=1800.0,
        command="/usr/bin/python train.py --lr 1",
    ),
)
UNKNOWN = Holder(ProcessStatus(11, "GPU-unknown-0"), has_tenants=False)


@pytest.mark.parametrize(
    "text",
    [
        "user=ann",
        "user=bob,ann",
        "user=1001",
        "user!=bob",
        "tenant=chat",
        "container=llama-0",
        "container=ml/llama-0",
        "container=3f3f3f3f3f3f",
        "gpu=0",
        f"gpu={GPU}",
        "gpu=5f2c1a90",
        "pid=10",
        "name~^/usr.*train",
        "name=python",
        "name!~jupyter",
        "'name~train.py --lr'",
        "vram>19.5G",
        "vram<21G",
        "age>1h",
        "idle>=30m",
        "orphan",
        "!zombie",
        "user=ann vram>1G orphan",
        "container!=x",
        "",
    ],
)
def test_what_holds_passes_and_its_contrary_does_not(text: str) -> None:
    assert parse(text)(ANN)
    if text:
        assert not parse(f"{text} pid=99")(ANN)
        assert not parse(text)(UNKNOWN), "what is not known matches nothing"


@pytest.mark.parametrize(
    "text",
    [
        "user=bob",
        "tenant=-",
        "vram>20G",
        "age>1d",
        "idle<30m",
        "!orphan",
        "zombie",
        "name!~train",
        "name=train.py",
    ],
)
def test_what_does_not_hold_does_not_pass(text: str) -> None:
    assert not parse(text)(ANN)
    assert not parse(text)(UNKNOWN)


def test_those_of_no_tenant_are_chosen_where_tenants_are_known() -> None:
    assert parse("tenant=-")(holder(process(12)))
    assert not parse("tenant=-")(replace(holder(process(12)), has_tenants=False))


@pytest.mark.parametrize(
    "text", ["", "usr=ann", "vram=1G", "vram>x", "age>1y", "name~(", "user~a", "orphans", "'"]
)
def test_what_cannot_be_understood_is_refused(text: str) -> None:
    if text:
        with pytest.raises(FilterError) as caught:
            parse(text)
        assert caught.value.exit_status == 2 and caught.value.remedy


def test_filters_are_joined_and_can_be_written_down() -> None:
    joined = both(parse("user=ann"), parse('name~"a b"'))
    assert str(joined) == "user=ann 'name~a b'"
