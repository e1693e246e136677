# SPDX-License-Identifier: Apache-2.0
"""The keys of the device gate: what may be written, what is said of the rest, what is inherited."""

from __future__ import annotations

import pytest

from fairsched.config import CgroupOwners, Config, from_bytes
from fairsched.config.loader import InvalidConfig

UUID = "GPU-5f2c1a90-0000-4000-8000-000000000001"


def config(text: str) -> Config:
    return from_bytes(text.encode(), "f.yaml")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[0, 247]", (0, 247)),
        (f"[{UUID}]", (UUID,)),
        ("all", "all"),
        ("none", "none"),
        ("[]", ()),
        ("null", None),
    ],
)
def test_what_may_be_written(written: str, read: object) -> None:
    assert config(f"tenants: {{a: {{gpus: {written}}}}}").tenants["a"].gpus == read


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("0", "write \\[0, 1\\], all or none"),
        ("some", "write \\[0, 1\\], all or none"),
        ("{}", "write \\[0, 1\\], all or none"),
        ("[-1]", "the number of its /dev/nvidiaN"),
        ("[248]", "the number of its /dev/nvidiaN"),
        ("[true]", "the number of its /dev/nvidiaN"),
        ("[1.0]", "the number of its /dev/nvidiaN"),
        ("[GPU-5f2c]", "nvidia-smi -L"),
        ("[all]", "nvidia-smi -L"),
        ("[[0]]", "nvidia-smi -L"),
        ("[MIG-5f2c1a90]", "name the GPU it is of"),
    ],
)
def test_what_may_not_be_written_is_said_with_file_line_key_and_remedy(written: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why) as refused:
        config(f"tenants:\n  a:\n    gpus: {written}\n")
    assert str(refused.value).startswith("f.yaml:3: tenants.a.gpus: ")
    assert refused.value.exit_status == 2


@pytest.mark.parametrize("under", ["'gpu*'", "['a/**']", "''", "['../x']"])
def test_under_names_cgroups_not_patterns(under: str) -> None:
    with pytest.raises(InvalidConfig, match=r"devices\.under"):
        config(f"devices: {{under: {under}}}")


def test_a_gate_that_is_required_needs_the_mode_it_works_in() -> None:
    with pytest.raises(InvalidConfig, match="in force in mode enforce only"):
        config("mode: observe\nmechanisms: {device_gate: required}")
    assert config("mode: enforce\nmechanisms: {device_gate: required}")


def test_the_default_hurts_nobody() -> None:
    assert (Config().devices.default, Config().devices.under) == ("allow", ("gpu.slice",))


def test_an_owner_knows_the_lists_around_it_and_where_they_stand() -> None:
    owners = CgroupOwners(
        config(
            "tenants: {t: {gpus: [0, 1], children: {c: {}, 'p*': {gpus: none, children: {d: {gpus: all}}}}}}"
        )
    )

    def lists(path: str) -> list[tuple[str, object]]:
        owner = owners.owner(path)
        assert owner is not None
        return [(one.key, one.gpus) for one in owner.gpu_lists]

    outer = ("tenants.t.gpus", (0, 1))
    inner = ("tenants.t.children.p*.gpus", "none")
    assert lists("/gpu.slice/t") == [outer]
    assert lists("/gpu.slice/t/c") == lists("/gpu.slice/t/other") == [outer]
    assert lists("/gpu.slice/t/p1") == lists("/gpu.slice/t/p1/else") == [outer, inner]
    assert lists("/gpu.slice/t/p1/d") == [outer, inner, ("tenants.t.children.p*.children.d.gpus", "all")]
