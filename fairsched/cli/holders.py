# SPDX-License-Identifier: Apache-2.0
"""What ``ps`` and ``reclaim`` share: the way to who holds GPUs, with a daemon or without, and filters as options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairsched.base.printable import printable
from fairsched.base.text import wrap
from fairsched.cli.common import config_option, connect, report_of, socket_option
from fairsched.errors import ConfigError, ControlError

if TYPE_CHECKING:
    from fairsched.config import CgroupOwners, Config
    from fairsched.protocol.client import ControlClient
    from fairsched.protocol.status import StatusReport
    from fairsched.reclaim.expression import Filter
    from fairsched.reclaim.holder import GpuView
    from fairsched.reclaim.listing import Lister
    from fairsched.reclaim.session import Own

_DEFAULT = Path("/etc/fairsched/config.yaml")
F = TypeVar("F", bound=Callable[..., Any])

FILTER_HELP = """\b
EXPR, for --filter: terms with blanks between them, and all must hold.
  user= tenant= container= gpu= pid=   a word, or several: user=ann,bob
  name~REGEX  name=PROGRAM             in the command
  vram>20G  age>1d  idle>30m           also <
  orphan  zombie                       parent gone; defunct
With != !~ and !orphan the contrary. What is not known of a process matches
nothing: idle>30m chooses nobody where launches are not seen."""


@dataclass(frozen=True)
class Wanted:
    """What the options of a command ask for; the GPU is looked up when GPUs are known."""

    words: tuple[str, ...] = ()
    """Terms of the filter language."""
    expression: str | None = None
    gpu: str | None = None

    @property
    def is_all(self) -> bool:
        return not self.words and self.expression is None and self.gpu is None

    def filter(self, gpus: tuple[GpuView, ...]) -> Filter:
        """Raises FilterError or click.BadParameter for what cannot be understood, or a GPU that is not there."""
        from fairsched.reclaim.expression import Filter, Term, both, parse, term
        from fairsched.reclaim.listing import NoSuchGpu, gpus_called

        found = Filter(tuple(map(term, self.words)))
        if self.expression is not None:
            found = both(found, parse(self.expression))
        if self.gpu is not None:
            try:
                uuids = gpus_called(self.gpu, gpus)
            except NoSuchGpu as error:
                raise click.BadParameter(str(error), param_hint="--gpu") from None
            found = both(found, [Term(f"gpu={self.gpu}", lambda holder: holder.status.gpu in uuids)])
        return found


def place_options(function: F) -> F:
    """--socket and --config, handed on as one ``place``."""

    @socket_option
    @config_option
    @functools.wraps(function)
    def command(*args: Any, socket_path: Path | None, config_path: Path | None, **kwargs: Any) -> Any:
        return function(*args, place=Place(socket_path, config_path), **kwargs)

    return command  # type: ignore[return-value]


@dataclass
class Place:
    """The daemon and the configuration of this host, so far as they are there."""

    socket_path: Path | None
    config_path: Path | None

    def lister(self, *, is_strict: bool = False, is_quiet: bool = False) -> Lister:
        """Who lists the holders. ``is_strict``: the configuration is read.

        Without a daemon that is said on stderr, unless ``is_quiet``.
        """
        from fairsched.reclaim.listing import DEVICE_DIR, Lister

        client = connect(self.socket_path, self.config_path, only_asks=True)
        try:
            client.request("ping")
        except ControlError as error:
            config = self.config
            whose = "not known" if config is None else "the configuration's"
            why = printable(str(error))
            text = f"note: the drivers and /proc tell, without launches; tenants are {whose}; {why}"
            if not is_quiet:
                click.echo("\n".join(wrap(text)), err=True)
            device_dir = DEVICE_DIR if config is None else config.gpu.device_dir
            return Lister(None, None if config is None else self._tenant_of, device_dir)
        config = self.config if is_strict or self.config_path is not None else None
        has_file = self.config_path is not None or _DEFAULT.exists()
        return Lister(
            functools.partial(_rows, client),
            self._tenant_of if has_file else None,
            device_dir=DEVICE_DIR if config is None else config.gpu.device_dir,
            told_gpus=functools.partial(_gpus, client),
        )

    @functools.cached_property
    def config(self) -> Config | None:
        """None: there is none, or it cannot be read, which is said."""
        from fairsched.config import load

        if self.config_path is None and not _DEFAULT.exists():
            return None
        try:
            return load(self.config_path)
        except ConfigError as error:
            click.echo(f"warning: {printable(str(error))}", err=True)
            return None

    @functools.cached_property
    def _owners(self) -> CgroupOwners | None:
        from fairsched.config import CgroupOwners

        return None if self.config is None else CgroupOwners(self.config)

    def _tenant_of(self, cgroup: str) -> str | None:
        """By the configuration, which is only read when somebody asks."""
        found = None if self._owners is None else self._owners.owner(cgroup)
        return None if found is None else found.tenant

    def tenants(self) -> Mapping[str, Mapping[str, float]]:
        """GPU seconds by tenant and GPU; none without a daemon."""
        from fairsched.reclaim.told import tenant_seconds

        status = self.status()
        return {} if status is None else tenant_seconds(status)

    def status(self) -> StatusReport | None:
        """The daemon's; None: it does not answer."""
        try:
            return report_of(connect(self.socket_path, self.config_path, only_asks=True).request("status"))
        except ControlError:
            return None


def own_of(place: Place) -> Own:
    """The daemon of this host: its processes, and where its journal is."""
    from fairsched.reclaim.session import Own
    from fairsched.reclaim.told import own_of as own_of_report

    config, status = place.config, place.status()
    run_dir = Path("/run/fairsched") if config is None else config.run_dir
    return Own(run_dir=run_dir) if status is None else own_of_report(status, run_dir)


def _rows(client: ControlClient) -> list[Any]:
    from fairsched.protocol.process import process_from_plain

    return [process_from_plain(document) for document in client.request("processes")]


def _gpus(client: ControlClient) -> list[GpuView]:
    from fairsched.reclaim.told import gpu_views

    return gpu_views(report_of(client.request("status")))
