# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the GPU checks, the sizes of their models, and their simulated stand-ins."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.gpu.arithmetic import (
    begun_in,
    coverage_error,
    cv_in_time,
    mean_latency_ns,
    nvml_limit_points,
    share_errors,
    steps_in,
    worst,
)
from benchmarks.gpu.hosts import Load, sim_workload
from benchmarks.gpu.shapes import DECODER_PART, SHAPES, choose_shape
from fairsched.simgpu import Step

S = 1_000_000_000


def log(*edges_s: float) -> list[Step]:
    """Steps back to back between these moments."""
    pairs = itertools.pairwise(edges_s)
    return [Step(round(end * S), 1.0, round((end - begin) * S)) for begin, end in pairs]


def test_steps_across_an_edge_count_by_their_part_and_begin_once() -> None:
    steps = log(0, 1, 2, 3, 4)
    window = (round(0.5 * S), round(2.5 * S))
    assert steps_in([steps, steps], window) == pytest.approx(4.0)
    assert begun_in([steps, steps], window) == 4
    assert mean_latency_ns([log(0, 1, 3)], (0, 3 * S)) == 1.5 * S
    assert mean_latency_ns([log(0, 1, 3)], (S // 2, 2 * S)) is None


def test_launches_that_are_not_seen_show_as_an_error() -> None:
    assert coverage_error(2000, 100, 20) == 0
    assert coverage_error(1900, 100, 20) == pytest.approx(0.05)
    assert coverage_error(2100, 100, 20) == pytest.approx(0.05)
    assert coverage_error(10, 0, 20) is None


def test_what_all_pay_alike_is_no_error_of_a_share_but_what_one_pays_is() -> None:
    assert worst(share_errors({"a": 11, "b": 22}, {"a": 10, "b": 20}))[1] == pytest.approx(0)
    assert worst(share_errors({"a": 10, "b": 30}, {"a": 10, "b": 10})) == ("a", pytest.approx(0.5))
    assert share_errors({"a": 1}, {"a": 0}) == {}


def test_nvml_is_trusted_no_further_than_its_samples_reach() -> None:
    half = {"a": 0.5, "b": 0.5}
    assert nvml_limit_points(half, 10, 139_000) == pytest.approx(3 * 5.9, rel=0.02)
    assert nvml_limit_points(half, 60, 139_000) == pytest.approx(3 * 2.4, rel=0.02)
    assert nvml_limit_points(half, 60, 556_000) == pytest.approx(3 * 4.8, rel=0.02)
    assert 0 < nvml_limit_points({"a": 1.0}, 10, 139_000) < nvml_limit_points(half, 10, 139_000)


def test_an_even_pace_does_not_vary_and_rounding_is_no_variation() -> None:
    even = log(*(number / 14 for number in range(14 * 6)))
    assert cv_in_time([even], (0, 5 * S)) == pytest.approx(0, abs=1e-9)
    uneven = log(*(number / 20 for number in range(21)), *(1 + number / 10 for number in range(1, 31)))
    assert cv_in_time([uneven], (0, 4 * S)) == pytest.approx(0.3464, rel=0.01)
    assert cv_in_time([even], (0, 2 * S)) is None
    assert cv_in_time([[]], (0, 5 * S)) is None


@pytest.mark.parametrize("gib", [8, 16, 24, 40, 80, 141])
def test_four_decoders_fit_beside_each_other(gib: int) -> None:
    shape = choose_shape(gib << 30, DECODER_PART)
    assert shape is not None
    assert 4 * shape.weights_bytes < (gib << 30) / 2
    larger = SHAPES[SHAPES.index(shape) + 1 :]
    assert all(one.weights_bytes > (gib << 30) * DECODER_PART for one in larger)


def test_a_gpu_too_small_for_the_smallest_model_is_said_to_be() -> None:
    assert choose_shape(64 << 20, DECODER_PART) is None


def test_sizes_grow_and_heads_divide_the_width() -> None:
    assert list(SHAPES) == sorted(SHAPES, key=lambda shape: shape.weights)
    assert all(shape.heads * 64 == shape.width for shape in SHAPES)


def test_a_simulated_trainer_queues_what_was_asked_for() -> None:
    workload = sim_workload(Load("t", "trainer", queue_ms=200, threads=300, processes=3))
    assert workload.depth * workload.kernels * workload.kernel_us == 200_000
    assert (workload.threads, workload.processes) == (300, 3)
    assert sim_workload(Load("d", "decode", queue_ms=200)).kind == "decode"
