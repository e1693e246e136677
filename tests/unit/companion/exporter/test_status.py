# SPDX-License-Identifier: Apache-2.0
"""The status as JSON, which `kubectl fairsched` reads: guarded and shared as the metrics are."""

from __future__ import annotations

import contextlib
import gzip
import json
import urllib.error
import urllib.request
from pathlib import Path

from fairsched.companion.exporter.part import Exporter
from fairsched.companion.part import Node
from fairsched.config.outward import Metrics
from fairsched.protocol.status import decision_from_plain, status_from_plain
from tests.unit.companion.exporter.made import HASH, PATIENCE_S, Exported, basic, free_port, web_config


def test_the_status_is_what_the_daemon_says(tmp_path: Path) -> None:
    exported = Exported(tmp_path)
    with exported.running():
        status, headers, body = exported.get("/status")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert {one.name for one in status_from_plain(json.loads(body)).tenants} >= {"chat", "batch"}
        packed = exported.get("/status", Accept_Encoding="gzip")[2]
        assert json.loads(gzip.decompress(packed))["schema_version"] == 2
        asked = len(exported.daemon.asked)
        for _ in range(20):
            exported.get("/status")
        assert len(exported.daemon.asked) <= asked + 5, "a status is shared for a second"


def test_a_tenant_is_explained_and_an_unknown_one_is_not(tmp_path: Path) -> None:
    exported = Exported(tmp_path)
    with exported.running():
        status, _, body = exported.get("/explain/b%61tch")
        found = json.loads(body)
        assert status == 200 and status_from_plain(found["status"])
        assert all(decision_from_plain(one).tenant == "batch" for one in found["decisions"])
        for name in ("nobody", "", "ml/llama-0", "../status", "%00"):
            assert exported.get(f"/explain/{name}")[0] == 404, name
        assert exported.get("/explain")[0] == 404


def test_who_may_not_see_the_metrics_may_not_see_the_status(tmp_path: Path) -> None:
    exported = Exported(tmp_path, web_config(tmp_path, f"basic_auth_users: {{prometheus: {HASH}}}"))
    with exported.running():
        for path in ("/status", "/explain/batch"):
            status, _, body = exported.get(path)
            assert status == 401 and b"batch" not in body
            assert exported.get(path, Authorization=basic("prometheus", "guess"))[0] == 401


def test_a_daemon_that_does_not_answer_is_said(tmp_path: Path) -> None:
    port = free_port()
    exporter = Exporter(Metrics(listen=f":{port}"), Node(tmp_path / "nobody"))
    with contextlib.closing(exporter):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=PATIENCE_S)
            raise AssertionError("it has answered")
        except urllib.error.HTTPError as error:
            assert error.code == 503 and json.loads(error.read()) == {"error": "the daemon does not answer"}
