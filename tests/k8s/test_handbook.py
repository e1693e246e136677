# SPDX-License-Identifier: Apache-2.0
"""The ten minutes of docs/kubernetes.md, executed word for word on the live cluster.

Each block is a script of a reader's shell in a directory that holds `packaging`. Three of its programs stand for what
the reader has: a ``python3`` that keeps the image's first layer, a ``helm`` whose release gets the simulated GPU, and
a kubeconfig. NODE is this node. The pods that the page takes for granted are there before it begins, and ask for a GPU
each, as pods do that have one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.operating.blocks import section
from tests.k8s.cluster import NODE, Cluster
from tests.k8s.places import BIN, CACHE, SLOWER
from tests.k8s.pods import (
    GONE_S,
    PATIENCE_S,
    container_cgroup_of,
    drop_spaces,
    gpus_on_the_node,
    make_spaces,
    pod,
    run,
)
from tests.k8s.release import GPU_LABEL, NAME, NAMESPACE, Release, load_builder, need_image, simulated
from tests.node.daemon.site import STEADY
from tests.support import wait_until
from tests.unit.repo.tree import ROOT

PAGE = ROOT / "docs/kubernetes.md"
PODS = ("ml/llama-0", "ml/llama-1", "web/other")
PROMISED = {"ml/llama-0": 0.5, "ml/llama-1": 0.25, "web/other": 0.25}
TOLERATED = 0.06
WATCHED_S = 8.0
CONFIGURATION = "cluster/kustomization.yaml"


class Reader(Release):
    """Types what the page says."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.blocks = section(PAGE, "In ten minutes")
        self.home = self.cluster.directory / "reader"
        (self.home / "bin").mkdir(parents=True)
        (self.home / "packaging").symlink_to(ROOT / "packaging")
        needed = self.values({})
        del needed["config"], needed["image"]
        self.needed = needed
        (self.home / "simulated.yaml").write_text(yaml.safe_dump(needed))
        builder: Any = load_builder()
        kept = CACHE / f"image-base-{builder.base_key()}.tar"
        self.program("python3", f'exec {sys.executable} "$@" --base {kept}')
        more = f'[ "$1" != install ] || set -- "$@" --values {self.home}/simulated.yaml'
        self.program("helm", f'{more}; exec {BIN}/helm "$@"')

    def program(self, name: str, script: str) -> None:
        file = self.home / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def type(self, first_words: str) -> str:
        """Executes the block that begins so; what it printed."""
        (block,) = [one for one in self.blocks if one.text.startswith(first_words)]
        assert block.language == "sh"
        path = f"{self.home / 'bin'}:{BIN}:{os.environ['PATH']}"
        done = subprocess.run(
            self.cluster.inside("bash", "-euc", f"cd {self.home}\n{block.text.replace('NODE', NODE)}"),
            env={**os.environ, "PATH": path, "KUBECONFIG": str(self.cluster.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=240 * SLOWER,
        )
        assert done.returncode == 0, f"{PAGE.name}:{block.line}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def reader(cluster: Cluster) -> Iterator[Reader]:
    need_image(cluster)
    make_spaces(cluster, "ml", "web")
    cluster.kubectl("label", "node", NODE, f"{GPU_LABEL}-")
    with gpus_on_the_node(cluster, len(PODS)), simulated() as gpu:
        found = Reader(cluster, gpu)
        try:
            for full in PODS:
                space, _, name = full.partition("/")
                document = pod(name, namespace=space)
                document["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
                gpu.spawn(full, STEADY, container_cgroup_of(run(cluster, document)))
            yield found
        finally:
            cluster.kubectl("delete", "-f", str(base_of(ROOT)), "--ignore-not-found")
            found.uninstall()
            for full in PODS:
                gpu.kill_group(full)
            drop_spaces(cluster, "ml", "web")


def base_of(root: Path) -> Path:
    return root / "packaging/kubernetes/base/fairsched.yaml"


def test_the_image_is_built_and_the_chart_installed(reader: Reader) -> None:
    for words in ("python3 packaging/image/build.py", "kubectl label node", "helm install"):
        reader.type(words)
    assert reader.is_ready() and reader.status()["mode"] == "observe"
    assert reader.pod()["spec"]["containers"][0]["image"] == "registry.example/fairsched:0.1.0"


def test_the_pod_stands_in_the_status(reader: Reader) -> None:
    assert "mode observe" in reader.type("kubectl annotate namespace")
    wait_until(lambda: "ml/llama-0" in reader.fairsched("status"), PATIENCE_S, "the pod is a tenant")


def test_the_shares_are_held_as_promised(reader: Reader) -> None:
    reader.type("helm upgrade")
    wait_until(
        lambda: {one["name"] for one in reader.status()["tenants"] if one["used_ratio"]} >= set(PODS),
        PATIENCE_S,
        "all pods are accounted",
    )
    assert reader.shares(PODS, WATCHED_S) == pytest.approx(PROMISED, abs=TOLERATED)


def test_the_base_of_kustomize_makes_the_same_agent(reader: Reader) -> None:
    """What the node needs for the simulated GPU is added to the configuration of the page."""
    reader.uninstall()
    reader.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait", timeout_s=GONE_S)
    (configuration,) = [one.text for one in reader.blocks if one.language == "yaml"]
    file = reader.home / CONFIGURATION
    file.parent.mkdir()
    file.write_text(configuration + yaml.safe_dump({"patches": [{"patch": yaml.safe_dump(added(reader))}]}))
    reader.type("kubectl create namespace")
    assert reader.is_ready() and reader.status()["mode"] == "observe"
    wait_until(lambda: "ml/llama-0" in reader.fairsched("status"), PATIENCE_S, "the pod is a tenant")


def test_a_node_that_loses_the_label_loses_its_agent(reader: Reader) -> None:
    reader.cluster.kubectl("label", "node", NODE, f"{GPU_LABEL}-")
    wait_until(lambda: reader.pods() == [], GONE_S, "no agent is there")
    reader.cluster.kubectl("label", "node", NODE, f"{GPU_LABEL}=true")
    wait_until(lambda: reader.pods() != [], PATIENCE_S, "there is one again")


def added(reader: Reader) -> dict[str, Any]:
    """A patch of the DaemonSet with the values that the chart got."""
    (base,) = [one for one in yaml.safe_load_all(base_of(ROOT).read_text()) if one["kind"] == "DaemonSet"]
    (container,) = base["spec"]["template"]["spec"]["containers"]
    capabilities = container["securityContext"]["capabilities"]["add"]
    kept = [one for one in capabilities if one not in reader.needed["withoutCapabilities"]]
    changed = {
        "name": container["name"],
        "env": reader.needed["extraEnv"],
        "volumeMounts": reader.needed["extraVolumeMounts"],
        "securityContext": {"capabilities": {"add": kept}},
    }
    inner = {"containers": [changed], "volumes": reader.needed["extraVolumes"]}
    return {
        "apiVersion": base["apiVersion"],
        "kind": base["kind"],
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"template": {"spec": inner}},
    }
