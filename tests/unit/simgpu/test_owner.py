# SPDX-License-Identifier: Apache-2.0
"""Whose a context is: a tag in the environment, inherited, kept on record after the process has ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairsched.simgpu import SimHost, Workload
from tests.support import wait_until

CLIENTS = str(Path(__file__).with_name("clients.py"))
SHORT = Workload("decode", kernels=2, kernel_us=100, contexts=2, seconds=0.05)


def test_the_contexts_of_a_process_carry_its_tag(host: SimHost):
    tagged = host.spawn(SHORT, env={"FAIRSCHED_SIM_OWNER": "7"})
    largest = host.spawn(SHORT, env={"FAIRSCHED_SIM_OWNER": str(2**32 - 1)})
    untagged = host.spawn(SHORT)
    assert [t.owner for t in host.truth_of(tagged)] == [7, 7]
    assert [t.owner for t in host.truth_of(largest)] == [2**32 - 1] * 2
    assert [t.owner for t in host.truth_of(untagged)] == [0, 0]
    assert tagged.process.wait(30) == 0
    wait_until(lambda: not any(t.is_alive for t in host.truth_of(tagged)), 30, "the engine notices its end")
    assert [t.owner for t in host.truth_of(tagged)] == [7, 7]


def test_a_forked_child_inherits_the_tag(host: SimHost, start):
    client = start(host, "forked", FAIRSCHED_SIM_OWNER="3")
    assert client.says()["child"][-1] == 0
    truths = host.truth()
    assert len({t.pid for t in truths}) == 2
    assert [t.owner for t in truths] == [3, 3]


@pytest.mark.parametrize("tag", ["", "0", "-1", "4294967296", "chat", "7x"])
def test_a_tag_that_is_no_number_is_refused_and_not_ignored(host: SimHost, tag: str, capfd):
    process = host.popen([sys.executable, CLIENTS, "devices"], env={"FAIRSCHED_SIM_OWNER": tag})
    assert process.wait(30) == 0
    told = capfd.readouterr()
    assert '"rc": 1' in told.out
    assert f"FAIRSCHED_SIM_OWNER={tag}: set it to" in told.err
