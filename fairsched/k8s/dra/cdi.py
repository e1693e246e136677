# SPDX-License-Identifier: Apache-2.0
"""CDI specs: what the container runtime puts into the containers of a claim.

Problem. A container that uses a GPU needs its device nodes and the driver's libraries. Which libraries there are only
NVIDIA's own tools know; a GPU's device node may be ours to give where they are not installed.

Approach. One spec file for each claim, written whole or not at all, with a device for each that the claim was given.
Where a spec of NVIDIA's (``nvidia.com/gpu``, as nvidia-ctk writes it) names the GPU by its UUID, that device goes along
and brings nodes and libraries; ours says the share alone. Otherwise ours has the nodes, and NVIDIA_VISIBLE_DEVICES,
with which NVIDIA's runtime brings the libraries where it is the node's. In a directory of devices a plain file stands
for a device of a simulated GPU: it is mounted.

Terms. *Nodes* are device nodes. Errors: ClaimError where a node is not there; OSError where a file cannot be written.
Source: CDI's specification 0.5.0 (hostPath); /proc/driver/nvidia/capabilities of the driver for MIG instances.
"""

from __future__ import annotations

import contextlib
import json
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fairsched.base.files import replace_file
from fairsched.k8s.dra import DRIVER
from fairsched.k8s.dra.claims import ClaimError, Given, Prepared
from fairsched.k8s.dra.devices import GpuFacts

KIND = f"{DRIVER}/claim"
VERSION = "0.5.0"
"""The first with hostPath."""
VENDORS = "nvidia.com/gpu"
SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
"""Of all GPUs; the first is needed, the others are where the module nvidia-uvm is loaded."""
MOST_BYTES = 4 << 20
"""Of a spec of others; nvidia-ctk writes some 20 kB for each GPU."""
_PREFIX = f"{DRIVER}-claim-"


@dataclass(frozen=True)
class Places:
    """Where things are, as we see them; what runs containers sees them by the same paths."""

    cdi_dir: Path = Path("/var/run/cdi")
    """Ours are written there."""
    other_dirs: tuple[Path, ...] = (Path("/etc/cdi"),)
    device_dir: Path = Path("/dev")
    capabilities: Path = Path("/proc/driver/nvidia/capabilities")


@dataclass
class Specs:
    """The spec files of this driver."""

    places: Places
    _seen: dict[Path, tuple[tuple[int, int], frozenset[str]]] = field(default_factory=dict)
    """Names of devices in specs of NVIDIA's, by file, with its time and size."""

    def path(self, uid: str) -> Path:
        return self.places.cdi_dir / f"{_PREFIX}{uid}.json"

    def make(
        self, prepared: Prepared, gpus: Mapping[str, GpuFacts]
    ) -> tuple[dict[str, Any], list[list[str]]]:
        """The spec of a claim, and the CDI names of each device that it was given. Raises ClaimError."""
        vendors = self.vendors_names()
        devices, names = [], []
        for number, given in enumerate(prepared.given):
            gpu = gpus.get(given.uuid)
            if gpu is None:
                raise ClaimError(f"GPU {given.uuid} is not there (any more)")
            own = f"{prepared.uid}-{number}"
            is_vendors = gpu.uuid in vendors
            devices.append({"name": own, "containerEdits": self._edits(given, gpu, is_vendors=is_vendors)})
            names.append([*([f"{VENDORS}={gpu.uuid}"] if is_vendors else []), f"{KIND}={own}"])
        return {"cdiVersion": VERSION, "kind": KIND, "devices": devices}, names

    def write(self, uid: str, spec: Mapping[str, Any]) -> None:
        """Raises OSError. Readable for all, as runtimes' helpers may be anybody."""
        self.places.cdi_dir.mkdir(parents=True, exist_ok=True)
        replace_file(self.path(uid), json.dumps(spec).encode(), is_durable=False, mode=0o644)

    def remove(self, uid: str) -> None:
        """Also when there is none. Raises OSError."""
        self.path(uid).unlink(missing_ok=True)

    def uids(self) -> Iterator[str]:
        """Claims that there is a spec of."""
        with contextlib.suppress(OSError):
            for path in sorted(self.places.cdi_dir.iterdir()):
                if path.name.startswith(_PREFIX) and path.suffix == ".json":
                    yield path.name[len(_PREFIX) : -len(".json")]

    def sweep_scratch(self) -> None:
        """Remove what a write that was killed has left. Raises OSError."""
        for path in self.places.cdi_dir.glob(f".{_PREFIX}*"):
            path.unlink(missing_ok=True)

    # ---- what is in it ----

    def _edits(self, given: Given, gpu: GpuFacts, *, is_vendors: bool) -> dict[str, Any]:
        mark = re.sub(r"[^A-Z0-9]+", "_", gpu.uuid.upper())
        share = "" if given.share is None else f"{given.share:g}"
        env = [f"FAIRSCHED_SHARE_{mark}={share}"]
        if is_vendors:
            # NVIDIA's runtime has nothing to do any more; without this an image that says "all" would have all.
            return {"env": [*env, "NVIDIA_VISIBLE_DEVICES=void"]}
        env.append(f"NVIDIA_VISIBLE_DEVICES={gpu.uuid}")
        nodes, mounts = [], []
        for name, is_needed in self._node_names(gpu):
            path = self.places.device_dir / name
            try:
                mode = path.stat().st_mode
            except OSError as error:
                if is_needed:
                    raise ClaimError(
                        f"the device node {path} cannot be given: {error.strerror}",
                        remedy="load the driver on the node; inside the agent NVIDIA_VISIBLE_DEVICES=all",
                    ) from None
                continue
            if stat.S_ISCHR(mode):
                nodes.append({"path": f"/dev/{name}", "hostPath": str(path), "permissions": "rw"})
            else:
                options = ["rw", "nosuid", "bind"]
                mounts.append({"hostPath": str(path), "containerPath": f"/dev/{name}", "options": options})
        edits: dict[str, Any] = {"env": env}
        return edits | ({"deviceNodes": nodes} if nodes else {}) | ({"mounts": mounts} if mounts else {})

    def _node_names(self, gpu: GpuFacts) -> Iterator[tuple[str, bool]]:
        """(name below the directory of devices, whether it is needed)"""
        if gpu.minor is None:
            raise ClaimError(
                f"the device node of GPU {gpu.uuid} is not known",
                remedy="have NVML in the agent (runtimeClassName), or a CDI spec of NVIDIA's with UUIDs on the node",
            )
        yield f"nvidia{gpu.minor}", True
        for name in SHARED_NODES:
            yield name, name == "nvidiactl"
        if gpu.parent_uuid is not None:
            top = self.places.capabilities / f"gpu{gpu.minor}/mig/gi{gpu.gpu_instance}"
            for access in (top / "access", top / f"ci{gpu.compute_instance}/access"):
                yield f"nvidia-caps/nvidia-cap{_capability(access)}", True

    def vendors_names(self) -> set[str]:
        """Devices that NVIDIA's specs on this node name."""
        found: set[str] = set()
        for directory in (self.places.cdi_dir, *self.places.other_dirs):
            with contextlib.suppress(OSError):
                for path in directory.iterdir():
                    if path.suffix in (".json", ".yaml", ".yml") and not path.name.startswith(_PREFIX):
                        found |= self._names_in(path)
        return found

    def _names_in(self, path: Path) -> frozenset[str]:
        try:
            facts = path.stat()
            key = (facts.st_mtime_ns, facts.st_size)
            if self._seen.get(path, (None,))[0] != key:
                small = stat.S_ISREG(facts.st_mode) and facts.st_size <= MOST_BYTES
                self._seen[path] = (key, _vendors_in(path.read_bytes()) if small else frozenset())
        except OSError:
            self._seen.pop(path, None)
            return frozenset()
        return self._seen[path][1]


def _vendors_in(data: bytes) -> frozenset[str]:
    if VENDORS.encode() not in data:  # the specs of others need not be parsed
        return frozenset()
    try:
        spec = yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return frozenset()
    if not isinstance(spec, dict) or spec.get("kind") != VENDORS or not isinstance(spec.get("devices"), list):
        return frozenset()
    return frozenset(str(one.get("name")) for one in spec["devices"] if isinstance(one, dict))


def _capability(access: Path) -> int:
    """The minor of the capability in a file of the driver's. Raises ClaimError."""
    with contextlib.suppress(OSError):
        found = re.search(
            r"^DeviceFileMinor:\s*(\d+)", access.read_text(encoding="ascii", errors="replace"), re.M
        )
        if found:
            return int(found[1])
    raise ClaimError(
        f"{access} does not say which device node the MIG instance has",
        remedy="have a CDI spec of NVIDIA's with UUIDs on the node: nvidia-ctk cdi generate",
    )
