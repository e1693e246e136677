# SPDX-License-Identifier: Apache-2.0
"""What the plugin is told on its command line, checked."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from fairsched.errors import ConfigError
from fairsched.gpu.health import QUIET_S, UNWELL_XIDS
from fairsched.k8s.plugin.cdi import Places
from fairsched.k8s.plugin.choose import How
from fairsched.k8s.plugin.service import Ways
from fairsched.k8s.plugin.shares import MOST_SHARES

SHARES = 100
PLUGINS = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
RUN = Path("/run/fairsched-shares")
FILE = "shares.json"
_TOOL = "nvidia-ctk"


@dataclass(frozen=True)
class PluginSettings:
    """See ``--help``."""

    shares_per_gpu: int = SHARES
    how: How = "pack"
    ways: Ways = field(default_factory=Ways)
    unwell_xids: tuple[int, ...] = UNWELL_XIDS
    quiet_s: float = QUIET_S
    plugins: Path = PLUGINS
    pod_resources: Path = POD_RESOURCES
    run: Path = RUN
    places: Places = field(default_factory=Places)


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    found = argparse.ArgumentParser(
        prog="fairsched.k8s.plugin", description="Device plugin of the kubelet: fairsched.io/gpu-share."
    )
    add = found.add_argument
    add("--health", action="store_true", help="ask the one that runs whether it answers, and exit")
    add("--shares-per-gpu", type=int, default=SHARES, help=f"1 to {MOST_SHARES} [default: %(default)s]")
    add("--allocation", choices=("pack", "spread"), default="pack", help="[default: %(default)s]")
    add("--no-split", action="store_true", help="refuse shares of several GPUs where one could have had all")
    add("--inject", default="cdi", help="cdi, env, or cdi,env [default: %(default)s]")
    add("--unwell-xids", default=None, help="numbers with commas between; empty: none")
    add(
        "--quiet-s",
        type=float,
        default=QUIET_S,
        help="an Xid lasts so long, or until a reset [default: %(default)s]",
    )
    add("--plugin-dir", type=Path, default=PLUGINS, help="the kubelet's [default: %(default)s]")
    add(
        "--pod-resources",
        type=Path,
        default=POD_RESOURCES,
        help="the kubelet's socket [default: %(default)s]",
    )
    add("--run-dir", type=Path, default=RUN, help="for what the agent reads [default: %(default)s]")
    add("--cdi-dir", type=Path, default=Places().cdi, help="the runtime's [default: %(default)s]")
    add("--dev-root", type=Path, default=Places().dev, help="stands for /dev [default: %(default)s]")
    add("--nvidia-ctk", default="auto", help="a program, auto (that on PATH) or none [default: %(default)s]")
    add("--driver-root", type=Path, default=Path("/"), help="for nvidia-ctk [default: %(default)s]")
    return found


def settings_of(told: argparse.Namespace) -> PluginSettings:
    """Raises ConfigError, which names the option."""
    if not 1 <= told.shares_per_gpu <= MOST_SHARES:
        raise _wrong("--shares-per-gpu", f"{told.shares_per_gpu} is not 1 to {MOST_SHARES}", "100 is usual")
    if not 0 <= told.quiet_s < float("inf"):
        raise _wrong("--quiet-s", f"{told.quiet_s} is no number of seconds", "600 is usual")
    for name in ("plugin_dir", "pod_resources", "run_dir", "cdi_dir", "dev_root", "driver_root"):
        if not getattr(told, name).is_absolute():
            raise _wrong(f"--{name.replace('_', '-')}", "is no absolute path", "begin it with /")
    ways = {one.strip() for one in told.inject.split(",")}
    if not ways or ways - {"cdi", "env"}:
        raise _wrong("--inject", f"{told.inject!r} is not understood", "write cdi, env, or cdi,env")
    tool = {"auto": shutil.which(_TOOL), "none": None}.get(told.nvidia_ctk, told.nvidia_ctk)
    return PluginSettings(
        shares_per_gpu=told.shares_per_gpu,
        how=told.allocation,
        ways=Ways("cdi" in ways, "env" in ways, not told.no_split),
        unwell_xids=UNWELL_XIDS if told.unwell_xids is None else _xids(told.unwell_xids),
        quiet_s=told.quiet_s,
        plugins=told.plugin_dir,
        pod_resources=told.pod_resources,
        run=told.run_dir,
        places=Places(told.cdi_dir, told.dev_root, Path("/proc"), tool, told.driver_root),
    )


def _xids(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(one) for one in text.split(",") if one.strip()}))
    except ValueError:
        raise _wrong("--unwell-xids", f"{text!r} has what is no number", "write 48,79") from None
    if any(not 0 < one < 10_000 for one in found):
        raise _wrong("--unwell-xids", f"{text!r} has what is no Xid", "write 48,79")
    return found


def _wrong(option: str, what: str, remedy: str) -> ConfigError:
    return ConfigError(what, key=option, remedy=remedy)
