# SPDX-License-Identifier: Apache-2.0
"""The agent as a cluster's administrator installs it: the image, `helm install`, and what it says of itself.

The image is built from this host's files (packaging/image/build.py) and imported; its first layer is kept beside the
programs of the cluster. The GPU is simulated: the agent gets the libraries and the engine's directory as more volumes,
and pods' work comes from processes of ours in their cgroups, as no image has the simulated libcuda.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from fairsched.base.package import with_package
from fairsched.bpf import child
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.cli import main as cli
from fairsched.simgpu import GpuSpec
from fairsched.simgpu.node import SimNode
from tests.k8s.cluster import NODE, Cluster, ClusterError
from tests.k8s.places import BIN, CACHE, HAS_DISK, SLOWER
from tests.k8s.settings import ADDRESS, API_PORT
from tests.support import let_run, wait_until
from tests.unit.repo.tree import ROOT

CHART = ROOT / "packaging/helm/fairsched"
NAMESPACE = "fairsched"
NAME = "fairsched"
GPU_LABEL = "nvidia.com/gpu.present"
API = {"KUBERNETES_SERVICE_HOST": ADDRESS, "KUBERNETES_SERVICE_PORT": str(API_PORT)}
"""No proxy of services runs here."""
READY_S = 120.0 * SLOWER
PROBES = {
    "startup": {"periodSeconds": 30, "timeoutSeconds": 60, "failureThreshold": 60},
    "readiness": {"periodSeconds": 30, "timeoutSeconds": 60},
    "liveness": {"periodSeconds": 120, "timeoutSeconds": 60},
}
"""Of a slow node: each of them is a Python that starts."""
LESS = {"SYS_RESOURCE": 24}
"""Capabilities that a machine of tests may lack, and their numbers."""
GONE_S = 60.0 * SLOWER


def load_builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image_build", ROOT / "packaging/image/build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_image(cluster: Cluster) -> None:
    """Of this checkout, under the name that the chart has."""
    builder: Any = load_builder()
    out = cluster.directory / "fairsched.tar"
    base = CACHE / f"image-base-{builder.base_key()}.tar"
    for other in set(CACHE.glob("image-base-*.tar")) - {base}:
        other.unlink()
    builder.build(out, builder.NAME, base)
    cluster.import_image(out)
    out.unlink()


_imported: set[Path] = set()
"""Directories of the clusters that have it."""


def need_image(cluster: Cluster) -> None:
    """Import it, unless that was done, or skip the test."""
    if not (BIN / "helm").exists():
        pytest.skip("no helm: sudo make setup-k8s")
    if cluster.directory not in _imported and not HAS_DISK:
        import_image(cluster)
        _imported.add(cluster.directory)


@contextlib.contextmanager
def simulated(gpus: int = 1) -> Iterator[SimNode]:
    """GPUs in memory that the node sees as well: its /run is its own."""
    state = Path(tempfile.mkdtemp(prefix="fairsched-k8s-", dir="/dev/shm"))
    libraries = Path(tempfile.gettempdir()) / f"{state.name}-lib"
    try:
        with SimNode("/gpu.slice/k8s-", [GpuSpec()] * gpus, state_dir=state, library_dir=libraries) as node:
            yield node
    finally:
        shutil.rmtree(state, ignore_errors=True)
        shutil.rmtree(libraries, ignore_errors=True)


def compile_beforehand() -> None:
    """Has the agent's programs compiled, and keeps them where the agent looks.

    For a guest: on processors that are emulated that takes two minutes, and beside a control plane longer than the
    daemon waits. What one guest has compiled the next one finds in the share, if nothing has changed.
    """
    shared, place = Path(os.environ["FAIRSCHED_VM_OUT"]) / "bpf", Path("/var/lib/fairsched/bpf")
    shutil.copytree(shared, place, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRSCHED_BPF_CACHE", str(place))
        patch.setattr(child, "TIMEOUT_S", READY_S)
        GpuTimeProbe().close()
    shutil.copytree(place, shared, dirs_exist_ok=True)


class Release:
    """One `helm install`. Call :meth:`uninstall`, always."""

    def __init__(self, cluster: Cluster, gpu: SimNode) -> None:
        self.cluster, self.gpu = cluster, gpu
        self.values_path = cluster.directory / "values.yaml"
        self.ready_s = 0.0
        """From the first `helm install` until the agent was ready."""

    # ---- helm ----

    def values(self, config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Of the chart, for the simulated GPU."""
        host = self.gpu.host
        places = {"sim-libraries": host.library_dir, "sim-state": host.state_dir}
        return {
            "config": {
                "mode": "enforce",
                "mechanisms": {"ebpf": "required"},
                "kubernetes": {"watch_pods": False},
                **config,
            },
            "image": {"pullPolicy": "Never"},
            "withoutCapabilities": [name for name in LESS if not is_had(name)],
            "extraEnv": [{"name": name, "value": value} for name, value in {**host.env(), **API}.items()],
            "extraVolumes": [
                {"name": name, "hostPath": {"path": str(path), "type": "Directory"}}
                for name, path in places.items()
            ],
            "extraVolumeMounts": [
                {"name": name, "mountPath": str(path)} for name, path in places.items()
            ],
            **({"probes": PROBES} if SLOWER > 1 else {}),
            **more,
        }  # fmt: skip

    def helm(self, *arguments: str) -> str:
        """What helm printed. Raises ClusterError."""
        where = [f"--kubeconfig={self.cluster.kubeconfig}", "--namespace", NAMESPACE]
        command = self.cluster.inside(str(BIN / "helm"), *where, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300 * SLOWER)
        if done.returncode:
            raise ClusterError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def install(self, config: Mapping[str, Any], *, is_ready: bool = True, **more: Any) -> None:
        """Install it, or another configuration of it, and wait until the agent is ready."""
        self.values_path.write_text(yaml.safe_dump(self.values(config, **more)))
        self.cluster.kubectl("label", "node", NODE, f"{GPU_LABEL}=true", "--overwrite")
        options = ["--create-namespace", "--values", str(self.values_path)]
        self.helm("upgrade", "--install", NAME, str(CHART), *options)
        if is_ready:
            self.wait_ready()

    def uninstall(self) -> None:
        """Take it away, and wait until the agent's pod has gone."""
        if NAME in self.helm("list", "--short").split():
            self.helm("uninstall", NAME)
        wait_until(lambda: self.pods() == [], GONE_S, "the agent's pod has gone")

    def shares(self, names: Collection[str], seconds: float) -> dict[str, float]:
        """Parts of what these got together during the next ``seconds``."""
        before = self.gpu.truth_ns()
        let_run(seconds)
        after = self.gpu.truth_ns()
        got = {name: after[name] - before[name] for name in names}
        return {name: value / max(1, sum(got.values())) for name, value in got.items()}

    # ---- what is there ----

    def pods(self) -> list[dict[str, Any]]:
        selector = f"app.kubernetes.io/name=fairsched,app.kubernetes.io/instance={NAME}"
        found: list[dict[str, Any]] = self.cluster.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
        return found

    def pod(self) -> dict[str, Any]:
        """The agent's; one at a time, and an old one that goes is none."""
        (found,) = [one for one in self.pods() if "deletionTimestamp" not in one["metadata"]]
        return found

    def wait_replaced(self, name: str) -> None:
        """Until another pod than this one is the agent, and ready."""

        def is_another() -> bool:
            living = [one for one in self.pods() if "deletionTimestamp" not in one["metadata"]]
            return bool(living) and all(one["metadata"]["name"] != name for one in living)

        wait_until(is_another, GONE_S, "there is another agent")
        self.wait_ready()

    def is_ready(self) -> bool:
        """Whether the rollout of the last change is over."""
        status = self.cluster.get("daemonset", NAME, "-n", NAMESPACE)
        seen, found = status["status"].get("observedGeneration"), status["status"]
        return bool(
            seen == status["metadata"]["generation"]
            and found.get("desiredNumberScheduled") == 1
            and found.get("updatedNumberScheduled") == 1
            and found.get("numberReady") == 1
        )

    def wait_ready(self) -> None:
        try:
            wait_until(self.is_ready, READY_S, "the agent is ready")
        except AssertionError as error:
            told = self.cluster.kubectl("describe", "pods", "-n", NAMESPACE)
            raise AssertionError(f"{error}\n{told[-2500:]}\n{self.log()[-2500:]}") from error

    def log(self) -> str:
        """The end of the agent's, or why it cannot be had."""
        try:
            where = f"/api/v1/namespaces/{NAMESPACE}/pods/{self.pod()['metadata']['name']}"
            return self.cluster.text(f"{where}/log?tailLines=60")
        except (ClusterError, ValueError) as error:
            return str(error)

    def fairsched(self, *arguments: str) -> str:
        """A command in the agent's container."""
        return self.cluster.kubectl("exec", f"ds/{NAME}", "-n", NAMESPACE, "--", "fairsched", *arguments)

    def status(self) -> dict[str, Any]:
        """Raises ValueError where no daemon answers."""
        return self.ask("status")

    def ask(self, *command: str) -> dict[str, Any]:
        """The answer in JSON, asked on the node: it can be had without an API server. Raises ValueError without one."""
        run = f"/proc/{self.cluster.processes['namespace'].pid}/root/run"
        said = io.StringIO()
        quiet = contextlib.redirect_stderr(io.StringIO())
        with contextlib.redirect_stdout(said), quiet, contextlib.suppress(SystemExit):
            cli([*command, "--json", "--socket", f"{run}/fairsched/fairsched.sock"])
        found: dict[str, Any] = json.loads(said.getvalue())
        return found

    def is_answering(self) -> bool:
        """Whether a daemon says how it is."""
        try:
            return bool(self.status())
        except ValueError:
            return False

    def tenant(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.status()["tenants"] if one["name"] == name)
        return found

    def restarts(self) -> int:
        """Of the agent's container."""
        return sum(one["restartCount"] for one in self.pod()["status"].get("containerStatuses", []))

    def on_node(self, *command: str) -> str:
        """What a command prints on the node."""
        env = with_package(os.environ)
        done = subprocess.run(
            self.cluster.inside(*command), capture_output=True, text=True, timeout=60 * SLOWER, env=env
        )
        return done.stdout

    def host_pid(self) -> int:
        """Of the daemon."""
        return int(self.status()["pid"])


def is_had(capability: str) -> bool:
    """Whether we may give it to a container."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if "CapBnd" in line]
    return bool(int(line.split()[1], 16) >> LESS[capability] & 1)


def frozen_in(top: Path) -> list[Path]:
    """Cgroups below it that somebody has asked to freeze."""
    return [one.parent for one in top.rglob("cgroup.freeze") if is_asked(one)]


def is_asked(file: Path) -> bool:
    try:
        return file.read_text().strip() == "1"
    except OSError:
        return False  # it went meanwhile
