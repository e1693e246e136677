# SPDX-License-Identifier: Apache-2.0
"""Every row of `fairsched k8s doctor` stands in docs/kubectl.md, and was brought about on the live cluster."""

from __future__ import annotations

import ast
import re

from tests.k8s import test_doctor
from tests.unit.repo.tree import ROOT

ELSEWHERE = {
    "agent": "ok",
    "pod-cdi": "test_doctor.py: containerd's own words",
    "pod-allocate": "test_plugin.py",
    "no-node": "a cluster without one has no kubelet to play with",
    "no-gpu-node": "the same: other tests label the node",
    "pod-failed": "as pod-allocate, by another reason of the kubelet's",
    "unasked": "test_doctor.py: a user who may see less",
    "no-pod": "test_doctor.py: there is no such pod",
}
"""Codes that the scene of tests/k8s/test_doctor.py has not, and why."""


def codes_of_source() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "fairsched/k8s/doctor").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if node.func.id in ("Row", "Reason") and isinstance(first, ast.Constant):
                    found.add(str(first.value))
    return found


def codes_of_the_page() -> set[str]:
    text = (ROOT / "docs/kubectl.md").read_text().partition("| code | what is found |")[2]
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}


def test_the_page_names_every_code() -> None:
    assert codes_of_the_page() == codes_of_source() - {"agent"}


def test_every_code_was_brought_about_or_it_is_said_why_not() -> None:
    assert set(test_doctor.EXPECTED).isdisjoint(ELSEWHERE)
    assert {*test_doctor.EXPECTED, *ELSEWHERE} == codes_of_source()
