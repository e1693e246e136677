# SPDX-License-Identifier: Apache-2.0
"""Tells container runtimes what a GPU is made of: a CDI specification, with one device ``fairsched.io/gpu=UUID`` each.

Problem. The kubelet hands on names; what they mean a container runtime looks up in specifications on the node.

Approach. Where ``nvidia-ctk`` is there, it writes the specification, with the driver's libraries; else, or where it
fails or does not list what it wrote, we write our own with device nodes only: who runs in the container brings its
libraries, or the image has them. Names are the same in both. A GPU that no specification has is not given out.

A specification is written whole or not at all, and only when it says something else.
Source: CDI specification 0.5.0; the driver's /proc/driver/nvidia/capabilities for MIG.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairsched.base.files import replace_file
from fairsched.k8s.plugin.shares import Offer

VENDOR, CLASS = "fairsched.io", "gpu"
KIND = f"{VENDOR}/{CLASS}"
FILE = "fairsched.io-gpu.json"
VERSION = "0.5.0"
"""What runtimes since 2022 read, and all that is needed."""
CONTROL = ("nvidiactl", "nvidia-uvm")
"""Without these CUDA does not start."""
OPTIONAL = ("nvidia-uvm-tools", "nvidia-modeset")
CAPABILITIES = "nvidia-caps/nvidia-cap{}"
_TOOL_S = 20.0
"""nvidia-ctk looks for libraries on the whole node; some seconds."""
_SHOWN_CHARS = 300

logger = logging.getLogger(__name__)


class NoNode(Exception):
    """A device node is not there; the text names it."""


def device_name(uuid: str) -> str:
    """Of a GPU, within the kind: drivers before 470 have slashes in the names of instances."""
    return re.sub(r"[^A-Za-z0-9_.:-]", "_", uuid)


def qualified(uuid: str) -> str:
    """As the kubelet hands it on."""
    return f"{KIND}={device_name(uuid)}"


@dataclass(frozen=True)
class Places:
    """Where things are."""

    cdi: Path = Path("/var/run/cdi")
    dev: Path = Path("/dev")
    """What stands for the node's /dev, at the same path on the node."""
    proc: Path = Path("/proc")
    tool: str | None = None
    """nvidia-ctk; None: there is none."""
    driver_root: Path = field(default=Path("/"))
    """For nvidia-ctk."""


def nodes_of(offer: Offer, places: Places) -> list[str]:
    """Device nodes of one GPU, below /dev. Raises NoNode."""
    if offer.minor is None:
        raise NoNode("NVML does not say which device node it has")
    names = [f"nvidia{offer.minor}"]
    if offer.mig is not None:
        top = places.proc / f"driver/nvidia/capabilities/gpu{offer.minor}/mig/gi{offer.mig.gpu_instance}"
        files = (top / "access", top / f"ci{offer.mig.compute_instance}/access")
        names += [CAPABILITIES.format(_capability(file)) for file in files]
    for name in names:
        _check(places.dev / name)
    return names


def _capability(file: Path) -> int:
    try:
        found = re.search(r"^DeviceFileMinor:\s*(\d+)\s*$", file.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        raise NoNode(f"{file} does not say which node a MIG instance has")
    return int(found[1])


def _check(path: Path) -> None:
    try:
        is_device = stat.S_ISCHR(path.stat().st_mode)
    except OSError as error:
        raise NoNode(f"{path}: {error.strerror}") from None
    if not is_device:
        raise NoNode(f"{path} is no device node")


def own_spec(offers: Sequence[Offer], places: Places) -> tuple[dict[str, Any], dict[str, str]]:
    """A specification of device nodes, and why some GPUs are not in it, by UUID."""
    missing: dict[str, str] = {}
    devices: list[dict[str, Any]] = []
    common: list[str] = []
    try:
        for name in CONTROL:
            _check(places.dev / name)
        common = [*CONTROL, *(name for name in OPTIONAL if (places.dev / name).exists())]
    except NoNode as error:
        missing = {offer.uuid: str(error) for offer in offers}
    for offer in offers if common else ():
        try:
            edits = _edits([*common, *nodes_of(offer, places)], places)
            devices.append({"name": device_name(offer.uuid), "containerEdits": edits})
        except NoNode as error:
            missing[offer.uuid] = str(error)
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices}, missing


def _edits(names: Sequence[str], places: Places) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    for name in names:
        node = {"path": f"/dev/{name}", "permissions": "rw"}
        if places.dev != Path("/dev"):
            node["hostPath"] = str(places.dev / name)
        nodes.append(node)
    return {"deviceNodes": nodes}


class Specification:
    """The file in the runtime's directory. Not for several threads."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.path = places.cdi / FILE
        self.is_by_tool = False
        self._said: str | None = None

    def write(self, offers: Sequence[Offer]) -> dict[str, str]:
        """Have it say what these GPUs are; why some are not in it, by UUID. Takes as long as nvidia-ctk does."""
        offers = [offer for offer in offers if offer.minor is not None]
        text = self._by_tool(offers) if self._places.tool is not None and offers else None
        missing: dict[str, str] = {}
        self.is_by_tool = text is not None
        if text is None:
            spec, missing = own_spec(offers, self._places)
            text = json.dumps(spec, indent=1) + "\n"
        try:
            self._put(text)
        except OSError as error:
            return {offer.uuid: f"its CDI specification cannot be written: {error}" for offer in offers}
        return missing

    def is_there(self) -> bool:
        """False: somebody has removed it, as a reboot does."""
        return self.path.exists()

    def _put(self, text: str) -> None:
        """Runtimes run as root, and so do people who look; it is no secret."""
        if self.path.exists() and self.path.read_text() == text:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, text.encode(), is_durable=False, mode=0o644)

    def _by_tool(self, offers: Sequence[Offer]) -> str | None:
        """What nvidia-ctk writes of these GPUs, if it then lists all of them."""
        wanted = {qualified(offer.uuid) for offer in offers}
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / FILE
            names = ["--vendor", VENDOR, "--class", CLASS, "--device-name-strategy", "uuid"]
            where = [
                "--driver-root",
                str(self._places.driver_root),
                "--dev-root",
                str(self._places.dev.parent),
            ]
            why = self._run("generate", *names, *where, "--output", str(file))
            if why is None:
                why = self._run("list", "--spec-dir", scratch, wanted=wanted)
            try:
                text = file.read_text() if why is None else None
            except OSError as error:
                text, why = None, error.strerror or str(error)
        if why != self._said:
            self._said = why
            if why is not None:
                logger.warning("cdi=own reason=%r", f"nvidia-ctk: {why}")
        return text

    def _run(self, *arguments: str, wanted: set[str] | None = None) -> str | None:
        """Why ``nvidia-ctk cdi`` failed, or does not list what is wanted; None: it did well."""
        command = [str(self._places.tool), "cdi", *arguments]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_TOOL_S,
                stdin=subprocess.DEVNULL,
                env=os.environ,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)[:_SHOWN_CHARS]
        if done.returncode != 0:
            return f"exit {done.returncode}: {done.stderr.strip()[-_SHOWN_CHARS:]}"
        missing = (wanted or set()) - set(done.stdout.split())
        return f"{min(missing)} is not in what it wrote" if missing else None
