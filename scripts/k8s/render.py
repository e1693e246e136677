# SPDX-License-Identifier: Apache-2.0
"""Writes what follows from the Helm chart: ``python scripts/k8s/render.py [--check]``.

Problem. The chart's schema repeats that of the configuration, the manifests for kustomize repeat the chart, and what
the chart comes to under other values is seen by nobody: each of them drifts by itself.

Approach. All of them are written by this program, and a test writes them anew and compares. The schema of ``config`` is
the configuration's own (``fairsched config schema``), so helm refuses what the agents would refuse. The kustomize base
is the chart with its defaults. The definition of GpuSharePolicy is that of fairsched/k8s/policies. Each file of values
in tests/unit/k8s/values has what comes of it in golden/.

helm is that of ``make setup-k8s``, else the one on PATH. Exit: 0 written (or nothing to write), 1 something differs or
helm refused, 3 no helm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "packaging/helm/fairsched"
SCHEMA = CHART / "values.schema.json"
BASE = ROOT / "packaging/kubernetes/base"
CASES = ROOT / "tests/unit/k8s"
POLICIES = CHART / "files/gpusharepolicies.yaml"
KUBERNETES = "1.34.4"
"""What helm is to believe of the cluster that it does not ask."""
NAMESPACE = "fairsched"
BY = (
    "# SPDX-License-Identifier: Apache-2.0\n"
    "# Written by scripts/k8s/render.py from packaging/helm/fairsched: change that, and run it.\n"
)


class RenderError(Exception):
    """helm refused; the text is what it said."""


def helm() -> str | None:
    """The program; None where there is none."""
    built = Path(os.environ.get("FAIRSCHED_K8S_CACHE", "/var/cache/fairsched-k8s")) / "bin/helm"
    return str(built) if built.exists() else shutil.which("helm")


def run(*arguments: str) -> str:
    """What helm printed on its standard output. Raises RenderError."""
    program = helm()
    assert program is not None, "ask helm() first"
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode:
        # It tells of each link in the chart, whether it is asked or not.
        said = [line for line in done.stderr.splitlines() if "found symbolic link" not in line]
        raise RenderError("\n".join([*said, done.stdout]))
    return done.stdout


def template(*options: str) -> str:
    """The chart's manifests. Raises RenderError."""
    place = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    return run("template", "fairsched", str(CHART), *place, *options)


# ---- the schema ----


def thing(**properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def maybe(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def device_plugin(probe: dict[str, Any]) -> dict[str, Any]:
    """Of the values of the device plugin."""
    sys.path.insert(0, str(ROOT))
    from fairsched.k8s.plugin.shares import MOST_SHARES

    anything, flag, listed = (
        {"type": "object"},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "object"}},
    )
    absolute = {"type": "string", "pattern": "^/"}
    xid = {"type": "integer", "minimum": 1, "maximum": 9999}
    return thing(
        enabled=flag,
        sharesPerGpu={"type": "integer", "minimum": 1, "maximum": MOST_SHARES},
        allocation={"enum": ["pack", "spread"]},
        allowSplit=flag,
        inject={"type": "array", "items": {"enum": ["cdi", "env"]}, "minItems": 1, "uniqueItems": True},
        unwellXids={"type": ["array", "null"], "items": xid},
        quietSeconds={"type": "integer", "minimum": 0},
        nvidiaCtk={"type": "string", "pattern": "^(none|auto|/.*)$"},
        devRoot=absolute,
        kubeletDir=absolute,
        resources=anything,
        probes=thing(startup=probe, readiness=probe, liveness=probe),
        podAnnotations=anything,
        extraEnv=listed,
        extraVolumes=listed,
        extraVolumeMounts=listed,
    )


def schema() -> dict[str, Any]:
    """Of values.yaml."""
    sys.path.insert(0, str(ROOT))
    from fairsched.config import schema as config_schema

    config = config_schema()
    from fairsched.k8s.pools.schema import Pools

    definitions = config.pop("$defs")
    config.pop("$schema", None)
    pools = Pools.model_json_schema(by_alias=True)
    more = pools.pop("$defs")
    assert not set(definitions) & set(more), "two sections of one name"
    definitions |= more
    anything, text, flag = {"type": "object"}, {"type": "string"}, {"type": "boolean"}
    some, listed = {"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "object"}}
    probe = thing(periodSeconds=some, timeoutSeconds=some, failureThreshold=some, initialDelaySeconds=some)
    top = thing(
        config=config,
        image=thing(
            repository={"type": "string", "minLength": 1},
            tag=maybe("string"),
            pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
        ),
        imagePullSecrets=listed,
        nodeSelector={"type": "object", "additionalProperties": text},
        tolerations=listed,
        runtimeClassName=maybe("string"),
        priorityClassName={"type": "string", "minLength": 1},
        updateStrategy=thing(
            type={"enum": ["RollingUpdate", "OnDelete"]},
            rollingUpdate=thing(
                maxSurge={"const": 0, "description": "Two agents cannot run on one node."},
                maxUnavailable={"type": ["integer", "string"]},
            ),
        ),
        terminationGracePeriodSeconds=some,
        resources=anything,
        withoutCapabilities={"type": "array", "items": {"type": "string"}},
        probes=thing(startup=probe, readiness=probe, liveness=probe),
        serviceAccount=thing(name=maybe("string")),
        service=thing(enabled=flag, annotations=anything),
        serviceMonitor=thing(enabled=flag, interval=text, labels=anything),
        prometheusRule=thing(enabled=flag, labels=anything),
        grafanaDashboard=thing(enabled=flag, labels=anything),
        policies=thing(
            enabled=flag,
            replicas=some,
            resources=anything,
            nodeSelector={"type": "object", "additionalProperties": text},
            tolerations=listed,
            extraEnv=listed,
        ),
        teams=thing(
            enabled=flag,
            replicas=some,
            prometheus=maybe("string"),
            window=text,
            bound={"type": "number", "minimum": 1, "maximum": 10},
            extraArgs={"type": "array", "items": text},
            resources=anything,
            nodeSelector={"type": "object", "additionalProperties": text},
            tolerations=listed,
            extraEnv=listed,
            extraVolumes=listed,
            extraVolumeMounts=listed,
        ),
        devicePlugin=device_plugin(probe),
        pools=thing(enabled=flag, schedule={"type": "string", "minLength": 1}, config=pools),
        dra=thing(enabled=flag, admissionPolicy=flag, examples=thing(namespace=maybe("string"))),
        podAnnotations=anything,
        podLabels=anything,
        extraEnv=listed,
        extraVolumes=listed,
        extraVolumeMounts=listed,
        **{"global": anything},
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": definitions}


# ---- the files ----


def base() -> Iterator[tuple[Path, str]]:
    """The kustomize base: the chart with its defaults, without what says that helm has installed it."""
    lines = template().splitlines(keepends=True)
    kept = [line for line in lines if "helm.sh/chart:" not in line and "managed-by: Helm" not in line]
    yield BASE / "fairsched.yaml", BY + "".join(kept)
    resources = "namespace: fairsched\nresources:\n  - fairsched.yaml\n"
    head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    yield BASE / "kustomization.yaml", BY + head + resources


def policies() -> str:
    """The definition of GpuSharePolicy, which the API server checks them by."""
    import yaml

    sys.path.insert(0, str(ROOT))
    from fairsched.k8s.policies.crd import definition

    head = BY.replace("packaging/helm/fairsched", "fairsched/k8s/policies/crd.py")
    return head + yaml.safe_dump(definition(), sort_keys=False, width=110)


def golden(values: Path) -> str:
    """What the chart comes to with a file of values."""
    return BY + template("--values", str(values))


def files() -> Iterator[tuple[Path, str]]:
    """All that is written, with its text. Raises RenderError."""
    yield SCHEMA, json.dumps(schema(), indent=1) + "\n"
    yield POLICIES, policies()
    yield from base()
    for values in sorted((CASES / "values").glob("*.yaml")):
        yield CASES / "golden" / values.name, golden(values)


def main(arguments: list[str]) -> int:
    if helm() is None:
        print("render: no helm: sudo make setup-k8s, or install it", file=sys.stderr)
        return 3
    differ = []
    try:
        for path, text in files():
            if not path.exists() or path.read_text() != text:
                differ.append(path)
                if "--check" not in arguments:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
    except RenderError as error:
        print(f"render: {error}", file=sys.stderr)
        return 1
    for path in differ:
        print(path.relative_to(ROOT))
    return 1 if differ and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
