# SPDX-License-Identifier: Apache-2.0
"""Pods as children of their namespace's tenant, from the file and from what pods say; the file goes before."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from fairsched.config import CgroupOwners, from_bytes, render
from fairsched.config.podlayer import fitting, layer_path, layer_text, load_layer, with_layer
from fairsched.config.settings import Settings
from fairsched.errors import ConfigError
from tests.unit.config.kept import set_tenant
from tests.unit.config.test_match import LOW, UID, Host, config

POD = f"/kubepods/burstable/pod{UID}"
SPACE = 'ml: {match: {pod: "ml/*"}, weight: 3, children_are: pods, children: '
LAYER: dict[str, Any] = {
    "ml": {
        "match": {"pod": "ml/*"},
        "weight": 3.0,
        "children_are": "pods",
        "children": {"llama-0": {"weight": 2.0}},
    }
}


@pytest.mark.parametrize(
    ("children", "pod", "tenant", "weight"),
    [
        ("{llama-0: {weight: 2}}", "ml/llama-0", "ml/llama-0", 2),
        ("{llama-0: {weight: 2}}", "ml/other", "ml/other", 1),
        ('{"llama-*": {weight: 2}}', "ml/llama-7", "ml/llama-7", 2),
        ('{"llama-*": {weight: 2}, llama-7: {weight: 5}}', "ml/llama-7", "ml/llama-7", 5),
        ("{llama: {pods: [llama-0, llama-1], weight: 2}}", "ml/llama-1", "ml/llama", 2),
        ('{llama: {pods: ["llama-*"], weight: 2}}', "ml/llama-9", "ml/llama", 2),
        ('{"*": {class: batch}, a: {weight: 4}}', "ml/a", "ml/a", 4),
    ],
)
def test_a_pod_is_a_child_by_its_name_or_that_of_who_claims_it(
    tmp_path: Path, children: str, pod: str, tenant: str, weight: float
) -> None:
    host = Host(tmp_path)
    host.pod(pod)
    text = f"  {SPACE}{children}}}\n"
    found = CgroupOwners(config(text), host.names).owner(f"{POD}/{'3f' * 32}")
    assert found is not None
    assert (found.tenant, found.cgroup, found.is_leaf) == (tenant, POD, True)
    assert found.spec.weight == weight


@pytest.mark.parametrize(
    ("cgroup", "below"),
    [
        (f"/kubepods/pod{UID}", f"/{'3f' * 32}"),
        (f"/kubepods/besteffort/pod{UID}", f"/{'3f' * 32}"),
        (f"/kubepods.slice/kubepods-pod{LOW}.slice", f"/cri-containerd-{'3f' * 32}.scope"),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{LOW}.slice",
            f"/crio-{'3f' * 32}.scope",
        ),
    ],
    ids=["cgroupfs", "cgroupfs-besteffort", "systemd-guaranteed", "systemd-crio"],
)
def test_a_pod_is_a_child_with_both_cgroup_drivers_of_the_kubelet(
    tmp_path: Path, cgroup: str, below: str
) -> None:
    """Any of its containers, started again or not, and what is beside them, such as the sandbox."""
    host = Host(tmp_path)
    host.pod("ml/llama-0")
    owners = CgroupOwners(config(f"  {SPACE}{{llama-0: {{weight: 2}}}}}}\n"), host.names)
    for path in (cgroup + below, cgroup, cgroup + below.replace("3f", "4e")):
        found = owners.owner(path)
        assert found is not None, path
        assert (found.tenant, found.cgroup, found.spec.weight) == ("ml/llama-0", cgroup, 2)


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        ("  ml: {match: {pod: '*/*'}, children_are: pods}\n", "does not name one"),
        ("  ml: {match: {docker: a}, children_are: pods}\n", "does not name one"),
        ("  ml: {cgroup: a, match: {pod: 'ml/*'}, children_are: pods}\n", "does not name one"),
        ("  ml: {children: {a: {pods: b}}}\n", "children are cgroups"),
        (f"  {SPACE}{{a: {{children: {{b: {{}}}}}}}}}}\n", "a pod has no children here"),
        (f"  {SPACE}{{a: {{pods: x}}, b: {{pods: x}}}}}}\n", "overlaps with 'x' of 'a'"),
        (f"  {SPACE}{{a: {{pods: 'x*'}}, b: {{pods: '*y'}}}}}}\n", "both match a pod called"),
        (f"  {SPACE}{{a: {{pods: b}}, b: {{}}}}}}\n", "overlaps with 'b' of"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(tenants: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r".*") as error:
        config(tenants)
    assert said in " ".join(str(one) for one in [error.value, *getattr(error.value, "problems", ())])


def test_it_is_shown_as_it_is_read() -> None:
    text = f"  {SPACE}{{llama: {{pods: [llama-0]}}}}}}\n"
    shown = render(config(text))
    again = from_bytes(shown.encode(), "shown")
    assert again.tenants["ml"].children_are == "pods"
    assert again.tenants["ml"].children["llama"].pods == ("llama-0",)


# ---- the layer ----


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fairsched.yaml"
    write(path)
    return path


def write(path: Path, tenants: str = "chat: {cgroup: gpu/chat}", watch: str = "true") -> None:
    path.write_text(
        f"state_dir: {path.parent}\nkubernetes: {{watch_pods: {watch}}}\ntenants: {{{tenants}}}\n"
    )


def weights(settings: Settings) -> dict[str, float]:
    return {name: spec.weight for name, spec in settings.config.tenant_specs().items()}


def test_what_pods_come_to_is_in_force_at_once_and_after_a_start_without_an_api_server(file: Path) -> None:
    settings = Settings(file)
    assert any("ml" in line for line in settings.set_pods(LAYER))
    assert weights(settings) == {"chat": 1, "ml": 3, "ml/llama-0": 2}
    settings.close()
    assert weights(Settings(file)) == weights(settings)
    assert settings.set_pods({}) and weights(settings) == {"chat": 1}


def test_the_layer_outlives_a_reload_and_an_override_lies_over_it(file: Path) -> None:
    settings = Settings(file)
    settings.set_pods(LAYER)
    assert "weight: 5" not in settings.file_text()
    set_tenant(settings, "ml/llama-0", {"weight": 7})
    write(file, "chat: {cgroup: gpu/chat, weight: 5}")
    settings.reload()
    assert weights(settings) == {"chat": 5, "ml": 3, "ml/llama-0": 7}
    assert "weight: 5" in settings.file_text() and "llama" not in settings.file_text()


def test_what_the_file_says_is_written_once_for_all_who_ask(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever watches pods asks at each event, and the loop answers."""
    made: list[Any] = []
    monkeypatch.setattr(
        "fairsched.config.settings.render", lambda *given: made.append(given) or render(*given)
    )
    settings = Settings(file)
    first = settings.file_text()
    settings.set_pods(LAYER)
    set_tenant(settings, "ml", {"weight": 9})
    assert settings.file_text() is first and len(made) == 1
    write(file, "chat: {cgroup: gpu/chat, weight: 5}")
    settings.reload()
    assert "weight: 5" in settings.file_text() and len(made) == 2


def test_a_layer_that_does_not_fit_changes_nothing(file: Path) -> None:
    settings = Settings(file)
    settings.set_pods(LAYER)
    with pytest.raises(ConfigError):
        settings.set_pods({"web": {"match": {"pod": "web/*"}, "weight": -1}})
    assert weights(settings) == {"chat": 1, "ml": 3, "ml/llama-0": 2}
    settings.close()
    assert load_layer(layer_path(settings.config)) == LAYER


def test_nobody_waits_for_the_disk_to_keep_what_pods_came_to(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy disk takes seconds for it: the loop would stand still, and whoever is held be let go at the deadline."""
    may_end, fsync = threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        assert threading.current_thread() is not threading.main_thread(), "the loop's"
        assert may_end.wait(10)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    settings = Settings(file)
    settings.set_pods({"web": {"match": {"pod": "web/*"}}})
    settings.set_pods(LAYER)
    assert weights(settings)["ml"] == 3, "in force, whatever the disk does"
    assert not layer_path(settings.config).exists()
    may_end.set()
    settings.close()
    assert load_layer(layer_path(settings.config)) == LAYER


def test_a_layer_that_cannot_be_kept_is_in_force_and_said(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    settings = Settings(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        settings.set_pods(LAYER)
        settings.close()
    assert weights(settings)["ml"] == 3
    assert settings.pods_warning is not None and "No space left" in settings.pods_warning
    settings.set_pods(LAYER)
    settings.close()
    assert settings.pods_warning is None


def test_a_file_that_takes_the_pods_for_itself_goes_before_and_it_is_said(file: Path) -> None:
    settings = Settings(file)
    settings.set_pods(LAYER)
    write(file, 'all: {match: {pod: "*/*"}}')
    settings.reload()
    assert weights(settings) == {"all": 1}
    assert settings.pods_warning is not None and "overlaps" in settings.pods_warning
    write(file)
    settings.reload()
    assert settings.pods_warning is None and "ml" in weights(settings)


def test_a_bad_reload_keeps_the_file_that_the_next_layer_lies_on(file: Path) -> None:
    settings = Settings(file)
    write(file, "chat: {cgroup: gpu/chat, weight: -1}")
    with pytest.raises(ConfigError):
        settings.reload()
    settings.set_pods(LAYER)
    assert weights(settings)["chat"] == 1


def test_a_reload_that_an_override_refuses_leaves_no_trace_in_the_next_layer(file: Path) -> None:
    settings = Settings(file)
    set_tenant(settings, "chat", {"min": 0.6})
    write(file, "chat: {cgroup: gpu/chat}, train: {cgroup: gpu/train, min: 50%}")
    with pytest.raises(ConfigError):
        settings.reload()
    settings.set_pods(LAYER)
    assert set(weights(settings)) == {"chat", "ml", "ml/llama-0"}


def test_a_tenant_of_the_file_is_not_touched() -> None:
    found = with_layer(config("  ml: {cgroup: a, weight: 9}"), LAYER)
    assert found.tenants["ml"].weight == 9 and found.tenants["ml"].children == {}


def test_who_does_not_watch_pods_has_no_layer(file: Path) -> None:
    settings = Settings(file)
    settings.set_pods(LAYER)
    settings.close()
    write(file, watch="false")
    assert weights(Settings(file)) == {"chat": 1}


def test_a_damaged_layer_is_none(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(file)
    settings.set_pods(LAYER)
    settings.close()
    layer_path(settings.config).write_text("tenants: [")
    assert weights(Settings(file)) == {"chat": 1}
    assert "pods=ignored" in caplog.text


def test_of_a_layer_what_fits_is_taken_and_the_rest_is_named(tmp_path: Path) -> None:
    base = config("  ml: {cgroup: a}, b: {match: {pod: 'web/*'}}")
    other = {"match": {"pod": "x/*"}, "children_are": "pods", "children": {}}
    taken, refused = fitting(base, {**LAYER, "x": other, "web": {**other, "match": {"pod": "web/*"}}})
    assert set(taken) == {"x"}
    assert refused["ml"] == "it is a tenant of the file" and "overlaps" in refused["web"]
    (tmp_path / "pods.yaml").write_text(layer_text(taken))
    assert load_layer(tmp_path / "pods.yaml") == taken
