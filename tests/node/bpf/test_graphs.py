# SPDX-License-Identifier: Apache-2.0
"""Which graphs a context launched last, as the programs in the kernel keep it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairsched.accounting.graphs import LOST, graphs_of
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import GpuTimeProbe
from tests.node.bpf.conftest import MS, Program


def handles(probe: GpuTimeProbe, program: Program, after: int, last: int) -> tuple[int, ...]:
    key = (program.slot, int(program.context.generation))
    return graphs_of(key, probe.graphs(program.slot), after, last).handles


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_launch_of_a_graph_is_kept_with_its_number(
    program: Program, probe: GpuTimeProbe, suffix: str
) -> None:
    """The first work of a stream takes the long way; it is kept as well."""
    short, long = (int(program.told("graph", ns)) for ns in (MS, 3 * MS))
    before = int(program.context.submitted)  # what was captured is counted, too: it is a call like any other
    (stream,) = program.streams(1)
    program.call(f"cuGraphLaunch{suffix}", short, stream)
    program.launch(stream)
    program.call(f"cuGraphLaunch{suffix}", long, stream)
    program.call("cuStreamSynchronize", stream)
    assert program.context.submitted == before + 3
    assert handles(probe, program, before, before + 1) == (short,)
    assert handles(probe, program, before + 1, before + 2) == ()
    assert handles(probe, program, before, before + 3) == (short, long)


def test_the_latest_are_kept_and_another_context_has_none_of_them(
    start: Callable[[], Program], probe: GpuTimeProbe
) -> None:
    program = start()
    (stream,), graph = program.streams(1), int(program.told("graph", 1000))
    before = int(program.context.submitted)
    many = abi.KEPT_GRAPHS + 3
    for _ in range(many):
        program.call("cuGraphLaunch", graph, stream)
    program.call("cuStreamSynchronize", stream)
    assert handles(probe, program, before + 3, before + many) == (graph,) * abi.KEPT_GRAPHS
    assert handles(probe, program, before, before + many) == (LOST,)
    other = start()
    assert handles(probe, other, 0, before + many) == ()
