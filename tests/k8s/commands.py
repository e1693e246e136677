# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s`` and ``kubectl fairsched`` as a person runs them who can reach the cluster's API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fairsched.base.package import with_package
from tests.k8s.cluster import Cluster


class Person:
    """Runs commands with a kubeconfig, by default the administrator's."""

    def __init__(self, cluster: Cluster, kubeconfig: Path | None = None) -> None:
        self.cluster, self.kubeconfig = cluster, kubeconfig or cluster.kubeconfig

    def run(
        self, *arguments: str, module: str = "fairsched.cli", **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = self.cluster.inside(sys.executable, "-c", f"from {module} import main; main()", *arguments)
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
            env={**with_package(os.environ), "KUBECONFIG": str(self.kubeconfig), **env},
        )

    def say(self, *arguments: str, status: int = 0, **env: str) -> str:
        """What `fairsched k8s` printed; it must end with ``status`` and fit 80 columns."""
        done = self.run("k8s", *arguments, **env)
        assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
        if "--json" not in arguments and "diff" not in arguments:
            assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
        return done.stdout + done.stderr

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.say(*arguments, "--json", status=status))
