# SPDX-License-Identifier: Apache-2.0
"""What a path says, for paths that runtimes really made, and for paths that somebody made up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairsched.cgroup.identity import MAX_PATH_CHARS, Kind, Layer, innermost, layers_of, unescape

RECORDED = yaml.safe_load((Path(__file__).parent / "recorded.yaml").read_text())
ID = "3f" * 32
POD = "kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice"
DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(Layer)
    if field.default is not dataclasses.MISSING
}


def said(layer: Layer) -> dict[str, Any]:
    """What is not as usual, in the words of the recording."""
    found = {name: getattr(layer, name) for name in DEFAULTS if getattr(layer, name) != DEFAULTS[name]}
    return {"kind": layer.kind.value, **({} if layer.is_outer else {"is_outer": False}), **found}


@pytest.mark.parametrize("one", RECORDED, ids=lambda one: one["path"][:60])
def test_a_recorded_path_says_what_it_is(one: dict[str, Any]) -> None:
    layers = layers_of(one["path"])
    assert [said(layer) for layer in layers] == one["layers"]
    assert all(one["path"] == layer.cgroup or one["path"].startswith(layer.cgroup + "/") for layer in layers)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_every_kind_is_recorded(kind: Kind) -> None:
    assert any(layer["kind"] == kind.value for one in RECORDED for layer in one["layers"])


def test_every_recording_names_its_source() -> None:
    assert all(one["source"].strip() for one in RECORDED)
    assert len({one["path"] for one in RECORDED}) == len(RECORDED)


@pytest.mark.parametrize(
    "path",
    [
        f"/docker/{ID}/docker/{'ab' * 32}",
        f"/lxc.payload.web/system.slice/docker-{ID}.scope",
        f"/system.slice/ci.service/docker-{ID}.scope",
        f"/system.slice/ci.service/kubepods.slice/{POD}",
        f"/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope",
        f"/user.slice/user-1000.slice/user@1000.service/app.slice/containerd.service/docker-{ID}.scope",
        f"/user.slice/user-1000.slice/user@1000.service/app.slice/containerd.service/{POD}",
        "/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_1",
        "/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_1",
        "/user.slice/user-1000.slice/user@1000.service/lxc.payload.web",
        "/user.slice/user-1000.slice/user@1000.service/user.slice/user-0.slice",
        "/user.slice/user-1000.slice/user@1000.service/user.slice/user-0.slice/a.service",
        f"/system.slice/slurmstepd.scope/job_1/step_0/user/task_0/docker-{ID}.scope",
        f"/kubepods.slice/{POD}/cri-containerd-{ID}.scope/docker-{'ab' * 32}.scope",
        f"/kubepods.slice/{POD}/cri-containerd-{ID}.scope/system.slice/docker.service/docker-{'ab' * 32}.scope",
    ],
)
def test_what_lives_in_another_layer_may_be_made_up(path: str) -> None:
    assert layers_of(path)[0].is_outer
    assert not layers_of(path)[-1].is_outer


def test_what_narrows_a_layer_is_as_good() -> None:
    for path in (
        f"/kubepods.slice/{POD}/cri-containerd-{ID}.scope",
        "/slurm/uid_7/job_1/step_0",
        "/user.slice/user-7.slice/user@7.service/app.slice/a.service",
        f"/system.slice/containerd.service/docker-{ID}.scope",
    ):
        assert all(layer.is_outer for layer in layers_of(path))


def test_a_job_is_not_in_two_jobs() -> None:
    layers = layers_of("/system.slice/slurmstepd.scope/job_1/step_0/user/job_2/step_3")
    assert [(layer.job, layer.step) for layer in layers] == [("1", None), ("1", "0")]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/gpu.slice/chat",
        "/docker",
        "/docker/short",
        "/system.slice",
        "/kubepods.slice/kubepods-burstable.slice",
        "/user.slice",
        "/user-1000.slice",
        "/job_1",
        "/default",
        "/a" * MAX_PATH_CHARS + f"/docker/{ID}",
    ],
)
def test_what_no_runtime_makes_is_nothing(path: str) -> None:
    assert layers_of(path) == ()


def test_a_path_of_a_thousand_containers_is_read_so_far() -> None:
    assert len(layers_of(f"/docker/{ID}" + f"/{ID}" * 50)) == 8


def test_a_container_of_ctr_has_the_name_somebody_gave_it() -> None:
    (layer,) = layers_of("/default/llama")
    assert (layer.kind, layer.container_id) == (Kind.CONTAINERD, "llama")
    assert layers_of("/default/team.slice") == ()


def test_the_innermost_is_what_a_process_would_call_itself() -> None:
    found = innermost(layers_of(f"/docker/{ID}/system.slice/a.service"))
    assert found is not None
    assert found.kind is Kind.DOCKER
    found = innermost(layers_of("/user.slice/user-7.slice/user@7.service/app.slice/a.service"))
    assert found is not None
    assert found.unit == "a.service"
    assert innermost(()) is None


@pytest.mark.parametrize(
    ("escaped", "name"),
    [
        (r"qemu\x2d1\x2dvm", "qemu-1-vm"),
        (r"caf\xc3\xa9", "café"),
        (r"\xff", r"\xff"),
        ("plain", "plain"),
        (r"\x2", r"\x2"),
        ("\u2013\\x2d", "\u2013\\x2d"),
    ],
)
def test_escapes_of_systemd_are_read(escaped: str, name: str) -> None:
    assert unescape(escaped) == name


@given(
    st.lists(
        st.sampled_from(["docker", ID, "a.service", "b.slice", POD, "job_1", "uid_2", "slurm"]) | st.text()
    )
)
def test_a_prefix_of_a_path_says_the_same_of_itself(parts: list[str]) -> None:
    """Owners rest on it: what is claimed for a cgroup is claimed for all below it."""
    path = "".join(f"/{part.replace('/', '')}" for part in parts)
    layers = layers_of(path)
    for length in range(len(parts) + 1):
        prefix = "".join(f"/{part.replace('/', '')}" for part in parts[:length])
        of_prefix = layers_of(prefix)
        assert layers[: len(of_prefix)] == of_prefix
