# SPDX-License-Identifier: Apache-2.0
"""The configuration in force: a bad change changes nothing, an override outlives the daemon."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fairsched.config import from_bytes
from fairsched.config import settings as settings_module
from fairsched.config.settings import Settings
from fairsched.errors import ConfigError, FairschedError
from tests.unit.config.kept import set_tenant, unset_tenant


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fairsched.yaml"
    write(path, 2)
    return path


def write(path: Path, weight: object) -> None:
    path.write_text(
        f"state_dir: {path.parent / 'state'}\n"
        f"tenants:\n  chat: {{cgroup: /gpu/chat, weight: {weight}}}\n  train: {{cgroup: /gpu/train}}\n"
    )


def weight_of(settings: Settings, tenant: str = "chat") -> float:
    return settings.config.tenant_specs()[tenant].weight


def test_a_good_reload_takes_effect_and_says_what_changed(file: Path) -> None:
    settings = Settings(file)
    write(file, 5)
    lines = settings.reload()
    assert weight_of(settings) == 5
    assert len(lines) == 1
    assert "weight" in lines[0]
    assert settings.reload() == []


@pytest.mark.parametrize("weight", ["-1", "much", "[", "1\n  unknown: {weigth: 2}"])
def test_a_bad_reload_keeps_what_runs_and_says_so_until_a_good_one(file: Path, weight: str) -> None:
    settings = Settings(file)
    write(file, weight)
    with pytest.raises(ConfigError):
        settings.reload()
    assert weight_of(settings) == 2
    assert settings.error
    write(file, 3)
    settings.reload()
    assert settings.error is None
    assert weight_of(settings) == 3


def test_what_takes_effect_at_the_next_start_stays_as_it_was_until_then(file: Path) -> None:
    settings = Settings(file)
    before = settings.config
    new = file.parent / "new"
    places = f"run_dir: {new}/run\nstate_dir: {new}/state\ncontrol: {{socket: {new}/sock}}\n"
    rest = "gpu: {timeslice_us: 3000}\nmechanisms: {guardian: required, freezer: auto}\n"
    tenants = file.read_text().partition("\n")[2].replace("weight: 2", "weight: 5")
    file.write_text(places + rest + tenants)
    for _ in range(2):  # it is said again for as long as it waits
        said = "\n".join(settings.reload())
        for key in ("run_dir", "state_dir", "control.socket", "gpu.timeslice_us", "mechanisms.guardian"):
            assert re.search(rf"^{key} .* \(takes effect at the next start\)$", said, re.M), said
    for name in ("run_dir", "state_dir", "control", "gpu", "mechanisms"):
        assert getattr(settings.config, name) == getattr(before, name)
    assert weight_of(settings) == 5
    set_tenant(settings, "chat", {"weight": 7})
    assert (settings.config.socket_path, weight_of(settings)) == (before.socket_path, 7)
    assert before.overrides_path.exists()
    shown = from_bytes(settings.show()["yaml"].encode(), "shown")
    assert (shown.run_dir, shown.state_dir, shown.control) == (
        before.run_dir,
        before.state_dir,
        before.control,
    )
    assert weight_of(Settings(file)) == 5, "the next start looks where the file says"


def test_of_two_sections_that_fit_only_together_one_may_wait_for_the_next_start(file: Path) -> None:
    text = file.read_text()
    file.write_text(text + "mode: enforce\nmechanisms: {device_gate: required}\n")
    settings = Settings(file)
    file.write_text(text + "mode: observe\nmechanisms: {device_gate: auto}\n")
    settings.reload()
    assert (settings.config.mode, settings.config.mechanisms.device_gate) == ("observe", "required")
    set_tenant(settings, "chat", {"weight": 7})
    assert weight_of(settings) == 7
    assert from_bytes(settings.show()["yaml"].encode(), "shown").mode == "observe"


def test_the_freezer_is_switched_off_at_once(file: Path) -> None:
    settings = Settings(file)
    file.write_text(file.read_text() + "mechanisms: {freezer: off, guardian: off}\n")
    assert settings.reload() == [
        'mechanisms.freezer auto -> "off"',
        'mechanisms.guardian auto -> "off" (takes effect at the next start)',
    ]
    assert settings.config.mechanisms.freezer == "off"
    assert settings.config.mechanisms.guardian == "auto"


def test_a_file_that_is_gone_keeps_what_runs(file: Path) -> None:
    settings = Settings(file)
    file.unlink()
    with pytest.raises(ConfigError):
        settings.reload()
    assert weight_of(settings) == 2


def test_a_bad_file_at_the_start_is_an_error(file: Path) -> None:
    write(file, "much")
    with pytest.raises(ConfigError):
        Settings(file)


def test_an_override_wins_and_outlives_the_daemon(file: Path) -> None:
    settings = Settings(file)
    lines = set_tenant(settings, "chat", {"weight": 7})
    assert weight_of(settings) == 7
    assert any("weight" in line for line in lines)
    assert weight_of(Settings(file)) == 7


def test_an_override_survives_a_reload(file: Path) -> None:
    settings = Settings(file)
    set_tenant(settings, "chat", {"weight": 7})
    write(file, 3)
    settings.reload()
    assert weight_of(settings) == 7
    unset_tenant(settings, "chat", ["weight"])
    assert weight_of(settings) == 3
    assert weight_of(Settings(file)) == 3


@pytest.mark.parametrize(
    ("tenant", "values"),
    [("nobody", {"weight": 2}), ("chat", {}), ("chat", {"cgroup": "/x"}), ("chat", {"weight": -3})],
)
def test_a_bad_override_changes_and_writes_nothing(
    file: Path, tenant: str, values: dict[str, object]
) -> None:
    settings = Settings(file)
    with pytest.raises(ConfigError):
        set_tenant(settings, tenant, values)
    assert weight_of(settings) == 2
    assert not settings.file_config.overrides_path.exists()


def full(*_args: object) -> None:
    raise OSError(28, os.strerror(28))


def test_an_override_that_cannot_be_written_is_not_in_force(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "save_overrides", full)
    settings = Settings(file)
    with pytest.raises(FairschedError, match="nothing was changed"):
        set_tenant(settings, "chat", {"weight": 7})
    assert weight_of(settings) == 2
    assert settings.overrides.tenants == {}


def test_damaged_overrides_do_not_stop_the_daemon(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_tenant(Settings(file), "chat", {"weight": 7})
    path = Settings(file).file_config.overrides_path
    path.write_text(DAMAGED)
    caplog.clear()
    settings = Settings(file)
    assert weight_of(settings) == 2
    assert "overrides=ignored" in caplog.text


DAMAGED = "version: 1\ntenants: ["


def misfit(file: Path) -> Path:
    """An override of before that the file of now does not bear. Returns where it is."""
    settings = Settings(file)
    set_tenant(settings, "chat", {"min": 0.9})
    file.write_text(file.read_text().replace("/gpu/train}", "/gpu/train, min: 0.9}"))
    return settings.config.overrides_path


def test_overrides_that_do_not_fit_are_kept_when_new_ones_are_written(file: Path) -> None:
    path = misfit(file)
    before = path.read_text()
    settings = Settings(file)
    assert "the guarantees (min) add up to 1.8" in (settings.overrides_warning or "")
    assert path.read_text() == before, "the next start may have a file that bears it"
    set_tenant(settings, "train", {"weight": 3})
    set_tenant(settings, "train", {"weight": 4})
    aside = path.with_name("overrides.yaml.damaged")
    assert aside.read_text() == before
    assert str(aside) in (settings.overrides_warning or "")
    assert "train" in path.read_text()
    settings.reload()
    assert str(aside) in (settings.overrides_warning or ""), "until the next start"
    assert weight_of(settings, "train") == 4
    assert Settings(file).overrides_warning is None


def test_unset_keeps_them_too_and_those_of_an_earlier_time_make_room(file: Path) -> None:
    path = misfit(file)
    aside = path.with_name("overrides.yaml.damaged")
    aside.write_text("of an earlier time")
    path.write_text(DAMAGED)
    settings = Settings(file)
    unset_tenant(settings, "chat", [])
    assert aside.read_text() == DAMAGED


def test_overrides_that_do_not_fit_are_tried_again_at_a_reload(file: Path) -> None:
    path = misfit(file)
    settings = Settings(file)
    write(file, 2)
    assert any("tenants.chat.min" in line for line in settings.reload())
    assert settings.overrides_warning is None
    assert settings.config.tenant_specs()["chat"].min_ratio == 0.9
    set_tenant(settings, "chat", {"weight": 7})
    assert not path.with_name("overrides.yaml.damaged").exists()
    assert settings.config.tenant_specs()["chat"].min_ratio == 0.9


def test_overrides_that_somebody_removed_are_not_missed(file: Path) -> None:
    path = misfit(file)
    settings = Settings(file)
    path.unlink()
    set_tenant(settings, "train", {"weight": 3})
    assert settings.overrides_warning is None


def test_nothing_is_lost_when_the_new_ones_cannot_be_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = misfit(file)
    before = path.read_text()
    settings = Settings(file)
    with monkeypatch.context() as patch:
        patch.setattr(settings_module, "save_overrides", full)
        for _ in range(2):
            with pytest.raises(FairschedError, match="nothing was changed"):
                set_tenant(settings, "train", {"weight": 3})
    assert path.read_text() == before
    set_tenant(settings, "train", {"weight": 3})
    assert path.with_name("overrides.yaml.damaged").read_text() == before


def test_an_override_the_new_file_makes_wrong_refuses_the_reload(file: Path) -> None:
    settings = Settings(file)
    set_tenant(settings, "chat", {"min": 0.9})
    file.write_text(file.read_text().replace("/gpu/train}", "/gpu/train, min: 0.9}"))
    with pytest.raises(ConfigError):
        settings.reload()
    assert weight_of(settings) == 2
    assert settings.error


def test_an_override_of_a_tenant_that_is_no_more_can_be_changed_and_nothing_else_of_it(file: Path) -> None:
    settings = Settings(file)
    set_tenant(settings, "chat", {"weight": 3, "min": 0.5})
    text = file.read_text()
    file.write_text(text.replace("chat:", "other:"))
    settings.reload()
    assert settings.tenant_list()["kept"] == {"chat": {"weight": 3, "min": 0.5}}
    assert set_tenant(settings, "chat", {"weight": 4}) == []
    for values in (
        {"quota": 0.5},
        {"weight": 4, "quota": 0.5},
        {"min": 1.5},
        {"weight": -1},
        {"weight": "much"},
    ):
        with pytest.raises(ConfigError):
            set_tenant(settings, "chat", values)
    with pytest.raises(ConfigError, match="no tenant 'train2'"):
        set_tenant(settings, "train2", {"weight": 4})
    file.write_text(text)
    settings.reload()
    assert weight_of(settings) == 4
