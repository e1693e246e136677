# SPDX-License-Identifier: Apache-2.0
"""The configuration in force: the file, the overrides of ``tenant set``, and how they change while we run.

A change is validated whole before anything is touched; one that is wrong leaves everything as it was and
``error`` says what is wrong until the next good one.

What is set is in force, and answered, when the disk has it: a thread keeps it. Changes that come meanwhile wait, and
are kept together; what becomes of file and pods in between must fit what is about to be kept as well.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairsched.base.later import Errand, Later
from fairsched.base.saver import Saver
from fairsched.config import (
    DEFAULT_PATH,
    PLACES,
    Config,
    Overrides,
    check_set,
    check_values,
    diff,
    keep_started,
    list_settings,
    load,
    load_overrides,
    render,
    save_overrides,
)
from fairsched.config.podlayer import Layer, layer_path, layer_text, load_layer, with_layer
from fairsched.errors import ConfigError, FairschedError

MOST_WAITING = 64
"""Changes: clients give up, and come again, while a disk answers nobody; the control socket has half as many places."""
_Make = Callable[[Overrides], Overrides]
Lines = list[str]
"""What a change came to."""

logger = logging.getLogger(__name__)


@dataclass
class _Batch:
    """Overrides that the thread keeps, and who is told when it has."""

    overrides: Overrides
    owed: list[tuple[Later[Lines], Lines]] = field(default_factory=list)


class Settings:
    """File + overrides = ``config``.

    What takes effect at the next start only stays in ``config`` as it was at this one: a guardian that watches the new
    run_dir would not see the holds in the old one. ``file_config`` is as the file says but for the places.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError when the file is wrong. Overrides that do not fit are logged and left out."""
        self.path = path
        self.error: str | None = None
        self._plain = load(path)
        self._layer = _read_layer(self._plain)
        self._saver = Saver(layer_path(self._plain), "pods")
        self.file_config, self._pods_misfit = self._with_layer(self._plain)
        self.overrides, self._misfit = _read_overrides(self.file_config.overrides_path, self.file_config)
        self._aside: Path | None = None
        self._waiting: list[tuple[_Make, Later[Lines]]] = []
        self._batch: _Batch | None = None
        self._keeping: Errand[Path | None] = Errand("overrides")
        self._text: tuple[Config, str] | None = None
        self.config = self.overrides.apply(self.file_config)

    def close(self) -> None:
        """Wait until what was set and what pods came to is kept, but not for a disk that does not answer."""
        self._keeping.close()
        self._saver.close()

    def fileno(self) -> int:
        """Readable when :meth:`settle` has something to do."""
        return self._keeping.fileno()

    @property
    def overrides_warning(self) -> str | None:
        """Why what was once set is not in force, and where it is; None = it is."""
        if self._misfit is None:
            return None
        where = "" if self._aside is None else f"; kept as {self._aside}"
        return f"what `tenant set` changed before the start is not in force: {self._misfit}{where}"

    @property
    def pods_warning(self) -> str | None:
        """Why tenants that came of pods are not in force, or would not be after a start; None = they are."""
        if self._pods_misfit is not None:
            return f"tenants that came of pods are not in force: {self._pods_misfit}"
        why = self._saver.trouble
        return None if why is None else f"tenants that came of pods are not kept for the next start: {why}"

    @property
    def display_path(self) -> str | None:
        """The file in force; None = built-in defaults."""
        if self.path is not None:
            return str(self.path)
        return str(DEFAULT_PATH) if DEFAULT_PATH.exists() else None

    def reload(self) -> list[str]:
        """Read the file again; returns the changes as lines. Raises ConfigError and changes nothing.

        Overrides that did not fit the file of before are tried again.
        """
        overrides, misfit = self.overrides, self._misfit
        try:
            plain = load(self.path)
            fresh, pods_misfit = self._with_layer(plain)
            if misfit is not None and self._aside is None and self._batch is None:
                overrides, misfit = _read_overrides(self.file_config.overrides_path, fresh)
            config = self._overridden(fresh, overrides)
        except ConfigError as error:
            self.error = str(error)
            raise
        self.error = None
        lines = [str(change) for change in diff(self.config, config)]
        self._plain, self._pods_misfit = plain, pods_misfit
        self.overrides, self._misfit = overrides, misfit
        self.file_config = keep_started(fresh, self.config, PLACES)
        self.config = keep_started(config, self.config)
        return lines

    def _with_layer(self, plain: Config) -> tuple[Config, str | None]:
        """The file with the tenants that came of pods; without them, and why, where they do not fit any more."""
        try:
            return with_layer(plain, self._layer if plain.kubernetes.watch_pods else {}), None
        except ConfigError as error:
            logger.error("pods=ignored error=%r", str(error))
            return plain, str(error)

    def set_pods(self, layer: Layer) -> list[str]:
        """Other tenants come of pods: persist, return the changes as lines. Raises ConfigError and changes nothing.

        Pods come and go all the time, and who watches them tells it again: nobody waits for the disk.
        """
        fresh = with_layer(self._plain, layer)
        config = keep_started(self._overridden(fresh, self.overrides), self.config)
        lines = [str(change) for change in diff(self.config, config)]
        self._saver.save(layer_text(layer))
        self._layer, self._pods_misfit = dict(layer), None
        self.file_config, self.config = keep_started(fresh, self.config, PLACES), config
        return lines

    def tenant_list(self) -> Mapping[str, Any]:
        """Every setting of every tenant and where it comes from; the names of tenants that are no more and have
        overrides, and those overrides."""
        rows = [item for item in list_settings(self.file_config, self.overrides) if item.key[0] == "tenants"]
        stale = self.overrides.stale(self.file_config)
        kept = {name: dict(self.overrides.tenants[name]) for name in stale}
        return {"settings": rows, "stale": list(stale), "kept": kept}

    def show(self) -> Mapping[str, Any]:
        """The whole configuration in force, as YAML."""
        yaml = render(self.file_config, self.overrides)
        return {"path": self.display_path, "yaml": yaml}

    def file_text(self) -> str:
        """What the file alone says, as YAML. Whoever watches pods asks for it at each event: it is made once."""
        # A configuration is never changed, but replaced.
        if self._text is None or self._text[0] is not self._plain:
            self._text = self._plain, render(self._plain)
        return self._text[1]

    def _overridden(self, fresh: Config, overrides: Overrides) -> Config:
        """With these overrides; those that are about to be kept must fit as well. Raises ConfigError."""
        if self._batch is not None:
            self._batch.overrides.apply(fresh)
        return overrides.apply(fresh)

    def set_tenant(self, tenant: str, values: Mapping[str, Any]) -> Later[Lines]:
        """Override values of a tenant, persist, answer with the changes as lines, or a ConfigError.

        Of a tenant that is no more, values that it has overrides of: they are in force when it is back.
        """

        def make(before: Overrides) -> Overrides:
            kept = before.tenants.get(tenant, {})
            if tenant in before.stale(self.file_config) and values.keys() <= kept.keys():
                check_values({**kept, **values})
            else:
                check_set(tenant, values, self.file_config)
            return before.with_set(tenant, values)

        return self._override(make)

    def unset_tenant(self, tenant: str, keys: Sequence[str]) -> Later[Lines]:
        """Give the file its say back. May be answered with a ConfigError."""
        return self._override(lambda before: before.with_unset(tenant, keys))

    def _override(self, make: _Make) -> Later[Lines]:
        answer: Later[Lines] = Later()
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append((make, answer))
            self._begin()
        else:
            why = f"{self.file_config.overrides_path}: the disk has not kept what was set before; nothing was changed"
            answer.fail(FairschedError(why, remedy="look at the disk of state_dir"))
        return answer

    def _begin(self) -> None:
        """Have what waits kept, all at once, unless something is being kept."""
        if self._batch is not None or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        batch, config = _Batch(self.overrides), self.config
        for make, answer in waiting:
            try:
                overrides = make(batch.overrides)
                after = keep_started(overrides.apply(self.file_config), config)
            except Exception as error:  # of one, and not of those that wait beside it
                answer.fail(error)
                continue
            batch.owed.append((answer, [str(change) for change in diff(config, after)]))
            batch.overrides, config = overrides, after
        if not batch.owed:
            return
        self._batch = batch
        path, is_first = self.file_config.overrides_path, self._misfit is not None and self._aside is None
        self._keeping.start(lambda: _save(path, batch.overrides, is_misfit=is_first))

    def settle(self) -> None:
        """Put in force what is kept now, tell those who wait for it, and have kept what came meanwhile."""
        outcome, batch = self._keeping.take(), self._batch
        if outcome is None or batch is None:
            return
        self._batch = None
        aside, error = outcome
        is_kept = error is None
        if is_kept:
            self.overrides = batch.overrides
            self.config = keep_started(batch.overrides.apply(self.file_config), self.config)
            self._aside = aside or self._aside
            if self._aside is None:
                self._misfit = None  # somebody has removed them
        for answer, lines in batch.owed:
            if error is None:
                answer.give(lines)
            else:
                answer.fail(self._unwritten(error) if isinstance(error, OSError) else error)
        self._begin()

    def _unwritten(self, error: OSError) -> FairschedError:
        return FairschedError(
            f"{self.file_config.overrides_path}: cannot be written: {error.strerror}; nothing was changed",
            remedy="make state_dir writable for the daemon",
        )


def _save(path: Path, overrides: Overrides, *, is_misfit: bool) -> Path | None:
    """Returns where the file of before is kept, where it did not fit. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _keep(path) if is_misfit else None
    save_overrides(path, overrides)
    return aside


def _read_layer(config: Config) -> Layer:
    """What pods came to last; nothing where it is damaged, as it is made anew."""
    if not config.kubernetes.watch_pods:
        return {}
    try:
        return load_layer(layer_path(config))
    except ConfigError as error:
        logger.error("pods=ignored error=%r", str(error))
        return {}


def _read_overrides(path: Path, config: Config) -> tuple[Overrides, str | None]:
    """The overrides, or none of them and why they do not fit."""
    try:
        overrides = load_overrides(path)
        overrides.apply(config)
    except ConfigError as error:
        logger.error("overrides=ignored error=%r remedy=%r", str(error), error.remedy)
        return Overrides(), str(error)
    return overrides, None


def _keep(path: Path) -> Path | None:
    """What is about to be written over, under another name, too; None = there is nothing. Raises OSError."""
    if not path.exists():
        return None
    aside = path.with_suffix(f"{path.suffix}.damaged")
    aside.unlink(missing_ok=True)
    os.link(path, aside)
    logger.warning("overrides=set_aside kept_as=%s", aside)
    return aside
