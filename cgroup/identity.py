# SPDX-License-Identifier: Apache-2.0
"""Tells what a cgroup is from its path alone: a container, a pod, a job, a unit, a user's session (pure).

Problem: people know containers, pods, jobs and users; the kernel knows cgroups. Each runtime has its own way to write
the one into the other, in cgroup v1 and v2, with systemd and without. And whoever may make cgroups below its own can
write anything there: the path of a container of somebody else, too.

Approach: a path is read from the root down. Each component that some runtime makes begins a *layer*, with the path of
the cgroup it stands for. The first layer was made by the host. What follows lies inside of it, and whoever lives there
may have made it up: it is good for display, and nobody's identity is taken from it (``is_outer``). A job lies in its
user's slurm cgroup, a unit of a user in the user's slice: such a layer is as good as the one it narrows.

Terms: a *helper* is a cgroup that a runtime keeps for its own process beside a container (conmon, the monitor of LXC).

Source: the paths in tests/unit/cgroup/recorded.yaml, each with where it was published; containerd
pkg/cri/util (``slice:prefix:id``), podman libpod/container.go, systemd unit_name_escape(), SchedMD
doc/html/cgroup_v2.shtml.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

MAX_PATH_CHARS = 4096
"""Of a path that is read at all: PATH_MAX."""
_MAX_LAYERS = 8
"""Containers in containers; what is deeper is left out. Paths are kept, and whoever lives there chooses how long."""


class Kind(enum.Enum):
    """What made a cgroup."""

    DOCKER = "docker"
    PODMAN = "podman"
    CONTAINERD = "containerd"
    CRIO = "cri-o"
    CONTAINER = "container"
    """By its id alone: of which runtime the path does not say."""
    POD = "pod"
    LXC = "lxc"
    MACHINE = "machine"
    """Of systemd-machined: nspawn, libvirt."""
    SLURM = "slurm"
    UNIT = "unit"
    USER = "user"


CONTAINERS = frozenset({Kind.DOCKER, Kind.PODMAN, Kind.CONTAINERD, Kind.CRIO, Kind.CONTAINER})


@dataclass(frozen=True)
class Layer:
    """One thing a path goes through. What the path does not say is None."""

    kind: Kind
    cgroup: str
    """The cgroup that is all of it, as in /proc/PID/cgroup."""
    is_outer: bool
    """Made by the host, not by who lives in another layer."""
    is_helper: bool = False
    container_id: str | None = None
    """As the runtime writes it, whole."""
    pod_uid: str | None = None
    """As Kubernetes writes it, with dashes; of a static pod the hash of its file; of podman the id of its pod."""
    qos: str | None = None
    """guaranteed, burstable or besteffort; of a pod."""
    name: str | None = None
    """Of an LXC container or a machine."""
    unit: str | None = None
    """As systemctl prints it, escapes included."""
    slice: str | None = None
    """The slice a unit is in."""
    user_id: int | None = None
    """Of a user's slice, a unit in it, and a job where the path says so."""
    job: str | None = None
    """A number; of Slurm 26.05 and later a SLUID, unless CgroupJobIdPaths is set."""
    step: str | None = None
    """0, batch, extern, interactive."""


class _Read(NamedTuple):
    """Where the reading of a path stands."""

    layers: tuple[Layer, ...]
    slice: str | None = None
    parent: str = ""
    """The component before."""

    @property
    def last(self) -> Layer | None:
        return self.layers[-1] if self.layers else None


_HEX = r"[0-9a-f]{64}"
_SCOPE = re.compile(rf"(docker|cri-containerd|crio|libpod|nerdctl)-({_HEX})(?:\.scope)?")
_HELPER = re.compile(rf"(crio|libpod)-conmon-({_HEX})(?:\.scope)?")
_SPLIT = re.compile(rf"libpod-payload-({_HEX})")
_BARE = re.compile(_HEX)
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_PODS = r"(?:.+-)?kubepods-(?:(burstable|besteffort)-)?"
"""A slice has the names of those above it in its own: with the kubelet's ``cgroupRoot: /kubelet`` it begins with
``kubelet-``, as on each node of kind."""
_POD = re.compile(rf"(?:{_PODS})?pod({_UID})(?:\.slice)?")
_FLAT = re.compile(rf"{_PODS}pod({_UID})\.slice:(cri-containerd|crio):({_HEX})")
_PODMAN_POD = re.compile(rf"(?:machine|user)-libpod_pod_({_HEX})\.slice")
_LXC = re.compile(r"lxc\.(payload|monitor)\.(.+)")
_MACHINE = re.compile(r"machine-(.+)\.scope")
_USER_SLICE = re.compile(r"user-([0-9]{1,10})\.slice")
_SLURM_ROOT = re.compile(r"slurm(?:_[^/]+)?")
_SLURM_SCOPE = re.compile(r"(?:.+_)?slurmstepd\.scope")
_SLURM_USER = re.compile(r"uid_([0-9]{1,10})")
_SLURM_JOB = re.compile(r"job_([0-9]{1,10})|(s[0-9A-Z]{13})")
_SLURM_STEP = re.compile(r"step_([0-9a-z_]{1,32})")
_UNIT = re.compile(r".+\.(?:service|scope)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_MANAGER = re.compile(r"user@[0-9]+\.service")

_RUNTIMES = {
    "docker": Kind.DOCKER,
    "cri-containerd": Kind.CONTAINERD,
    "nerdctl": Kind.CONTAINERD,
    "crio": Kind.CRIO,
    "libpod": Kind.PODMAN,
}
_PARENTS = {"docker": Kind.DOCKER, "default": Kind.CONTAINERD, "k8s.io": Kind.CONTAINERD}
"""Cgroups at the root in which a runtime without systemd puts its containers: docker its own; containerd one for each
namespace, of which these two are usual."""
_SERVERS = frozenset(
    {"containerd.service", "docker.service", "crio.service", "k3s.service", "kubelet.service"}
)
"""Units of runtimes: the cgroups below are those of their containers, made by the host."""
_QOS = {"besteffort": "besteffort", "burstable": "burstable"}


@functools.lru_cache(maxsize=4096)
def layers_of(cgroup: str) -> tuple[Layer, ...]:
    """The layers of a path, the outermost first; none for a cgroup that no known runtime made.

    ``cgroup``: as in /proc/PID/cgroup, of v2 or of any v1 hierarchy.
    """
    read = _Read(())
    if len(cgroup) > MAX_PATH_CHARS:
        return ()
    end = 0
    while end < len(cgroup):
        start, end = end + 1, cgroup.find("/", end + 1)
        end = len(cgroup) if end < 0 else end
        part = cgroup[start:end]
        read = _step(read, part, cgroup[:end])
        if len(read.layers) >= _MAX_LAYERS:
            break
        read = read._replace(parent=part, slice=part if part.endswith(".slice") else read.slice)
    return read.layers


def innermost(layers: tuple[Layer, ...]) -> Layer | None:
    """What a process there would call itself: the last container or pod, else the last layer."""
    for layer in reversed(layers):
        if layer.kind not in (Kind.UNIT, Kind.USER):
            return layer
    return layers[-1] if layers else None


def unescape(name: str) -> str:
    """A unit's name as a person gave it: ``machine-qemu\\x2d1`` is machine-qemu-1. Bytes that are no UTF-8 stay."""
    if "\\x" not in name:
        return name
    raw = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)
    try:
        return raw.encode("latin-1").decode("utf-8")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return name


def _step(read: _Read, part: str, path: str) -> _Read:
    """Take in one component; ``path`` ends with it."""
    for reader in (_slurm, _container, _pod, _lxc, _user, _unit):
        found = reader(read, part, path)
        if found is not None:
            return found
    return read


def _with(read: _Read, layer: Layer) -> _Read:
    return read._replace(layers=(*read.layers, layer))


def _is_open(read: _Read) -> bool:
    """Whether what comes next was made by the host: nobody else lives above it."""
    last = read.last
    if last is None:
        return True
    return last.kind is Kind.UNIT and last.is_outer and last.user_id is None and last.unit in _SERVERS


def _slurm(read: _Read, part: str, path: str) -> _Read | None:
    last = read.last
    if last is not None and last.kind is Kind.SLURM:
        if last.job is None and (found := _SLURM_JOB.fullmatch(part)):
            return _with(read, replace(last, cgroup=path, job=found[1] or found[2]))
        if last.job is not None and last.step is None and (found := _SLURM_STEP.fullmatch(part)):
            return _with(read, replace(last, cgroup=path, step=found[1]))
        return None
    if _SLURM_ROOT.fullmatch(read.parent) and (found := _SLURM_USER.fullmatch(part)):
        return _with(read, Layer(Kind.SLURM, path, _is_open(read), user_id=int(found[1])))
    if _SLURM_SCOPE.fullmatch(read.parent) and (found := _SLURM_JOB.fullmatch(part)):
        return _with(read, Layer(Kind.SLURM, path, _is_open(read), job=found[1] or found[2]))
    return None


def _container(read: _Read, part: str, path: str) -> _Read | None:
    if found := _SCOPE.fullmatch(part):
        return _with(read, _new_container(read, _RUNTIMES[found[1]], found[2], path))
    if found := _SPLIT.fullmatch(part):
        return _with(read, _new_container(read, Kind.PODMAN, found[1], path))
    if found := _HELPER.fullmatch(part):
        return _with(read, replace(_new_container(read, _RUNTIMES[found[1]], found[2], path), is_helper=True))
    if found := _FLAT.fullmatch(part):
        pod = Layer(_RUNTIMES[found[3]], path, _is_open(read), pod_uid=_dashed(found[2]), qos=_qos(found[1]))
        return _with(read, replace(pod, container_id=found[4]))
    if _BARE.fullmatch(part):
        return _with(read, _new_container(read, _PARENTS.get(read.parent, Kind.CONTAINER), part, path))
    is_named = read.parent == "default" and path.count("/") == 2
    if is_named and not read.layers and not part.endswith((".slice", ".scope", ".service")):
        return _with(read, Layer(Kind.CONTAINERD, path, True, container_id=part))  # `ctr run IMAGE NAME`
    return None


def _new_container(read: _Read, kind: Kind, container_id: str, path: str) -> Layer:
    """A container directly in a pod belongs to it: as well made by the host as the pod is."""
    last = read.last
    if last is not None and last.kind is Kind.POD:
        return replace(last, kind=kind, cgroup=path, container_id=container_id)
    pod = _PODMAN_POD.fullmatch(read.parent)
    return Layer(kind, path, _is_open(read), container_id=container_id, pod_uid=pod[1] if pod else None)


def _pod(read: _Read, part: str, path: str) -> _Read | None:
    found = _POD.fullmatch(part)
    if found is None:
        return None
    level = found[1] or (read.parent if read.parent in _QOS else None)
    return _with(read, Layer(Kind.POD, path, _is_open(read), pod_uid=_dashed(found[2]), qos=_qos(level)))


def _lxc(read: _Read, part: str, path: str) -> _Read | None:
    if found := _LXC.fullmatch(part):
        return _with(
            read, Layer(Kind.LXC, path, _is_open(read), is_helper=found[1] == "monitor", name=found[2])
        )
    if read.parent in ("lxc", "lxc.payload", "lxc.monitor") and path.count("/") == 2:
        is_helper = read.parent == "lxc.monitor"
        return _with(read, Layer(Kind.LXC, path, _is_open(read), is_helper=is_helper, name=part))
    if read.parent == "machine.slice" and (found := _MACHINE.fullmatch(part)):
        name = unescape(found[1])
        return _with(read, Layer(Kind.MACHINE, path, _is_open(read), name=name, unit=part, slice=read.slice))
    return None


def _user(read: _Read, part: str, path: str) -> _Read | None:
    found = _USER_SLICE.fullmatch(part)
    if found is None or read.parent != "user.slice":
        return None
    return _with(read, Layer(Kind.USER, path, _is_open(read), slice=part, user_id=int(found[1])))


def _unit(read: _Read, part: str, path: str) -> _Read | None:
    """A unit of the host, or of a user's own manager. One that is inside of another belongs to who lives there."""
    if not _UNIT.fullmatch(part) or _SLURM_SCOPE.fullmatch(part) or _MANAGER.fullmatch(part):
        return None
    if path == "/init.scope":
        return None  # process 1: it is nobody's, whatever is asked for
    last = read.last
    user_id, is_outer = None, _is_open(read)
    if last is not None and last.kind is Kind.USER:
        user_id, is_outer = last.user_id, last.is_outer
    elif last is not None and not is_outer and read.slice is None:
        return None
    return _with(read, Layer(Kind.UNIT, path, is_outer, unit=part, slice=read.slice, user_id=user_id))


def _dashed(uid: str) -> str:
    return uid.replace("_", "-")


def _qos(level: str | None) -> str:
    return _QOS.get(level or "", "guaranteed")
