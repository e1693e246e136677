# SPDX-License-Identifier: Apache-2.0
"""A tenant with PyTorch: ``python -m benchmarks.gpu.tenant --kind decode --log FILE --report FILE``.

Kinds, each an endless loop of steps:
  spin      a known number of kernels that only wait, then a sync: launches that need no profiler to be counted
  decode    a greedy token of a random decoder, a window of tokens in and one out; a sync per token
  graph     the same as one CUDA graph
  trainer   forward, backward, update without a sync; as many steps in flight as make up ``--queue-ms``

Every step goes to the log as its program saw it. ``--gpu-log`` has the same steps as the GPU ran them, from events:
latency = time between the events around the step, end = when the second one was reached, in the host's clock (the
two drift apart by some ms a minute at worst). The report says what one step is. ``--device cpu`` tries the program
where there is no GPU, and measures nothing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.model import build_decoder
from benchmarks.gpu.shapes import DECODER_PART, TRAINER_PART, VOCABULARY, Shape, choose_shape
from benchmarks.gpu.steplog import StepLog

KINDS = ("spin", "decode", "graph", "trainer")
SPIN_KERNELS = 20
_SPIN_CYCLES = 500_000
"""About 0.3 ms: sleeping kernels count clock cycles."""
_WARM_STEPS = 5
_TIMED_STEPS = 10
_MAX_DEPTH = 256
_WINDOW_TOKENS = 256
_TRAINED_TOKENS = 512
_NO_WORK = ("ProfilerStep", "Optimizer.", "Event ", "Context ", "Stream ")
"""What a profiler shows on a GPU's timeline besides work, where it does not mark it as an annotation."""


class Cuda:
    """What a step needs of the device besides tensors."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.device = torch.device("cuda", 0)
        self.dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        self.memory_bytes = int(torch.cuda.get_device_properties(0).total_memory)
        self.name = torch.cuda.get_device_name(0)

    def mark(self) -> Any:
        """An event behind what was submitted so far."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, event: Any) -> None:
        event.synchronize()

    def between_ns(self, first: Any, second: Any) -> int:
        return round(float(first.elapsed_time(second)) * 1e6)

    def sync(self) -> None:
        self._torch.cuda.synchronize()

    def spin(self) -> None:
        self._torch.cuda._sleep(_SPIN_CYCLES)

    def graph_of(self, step: Callable[[], None]) -> Callable[[], None]:
        """The step's kernels as one graph; recorded on a stream of its own, as capturing demands."""
        cuda = self._torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            step()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            step()
        replay: Callable[[], None] = graph.replay
        return replay


class Cpu:
    """Stands in for it where there is none: everything is done when the call returns."""

    def __init__(self, torch: Any) -> None:
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.memory_bytes, self.name = 4 << 30, "cpu"

    def mark(self) -> int:
        return time.monotonic_ns()

    def wait(self, event: int) -> None:
        pass

    def between_ns(self, first: int, second: int) -> int:
        return second - first

    def sync(self) -> None:
        pass

    def spin(self) -> None:
        pass

    def graph_of(self, step: Callable[[], None]) -> Callable[[], None]:
        return step


class GpuClock:
    """Moments of the GPU in the host's clock.

    That the host saw an event later than it happened can only make the offset too large: the least one is the best.
    """

    def __init__(self, device: Cuda | Cpu) -> None:
        self._device = device
        self._first = device.mark()
        device.wait(self._first)
        self._offset_ns = time.monotonic_ns()

    def reached_ns(self, event: Any, seen_ns: int) -> int:
        """When ``event``, which the host saw complete at ``seen_ns``, was reached."""
        since_ns = self._device.between_ns(self._first, event)
        self._offset_ns = min(self._offset_ns, seen_ns - since_ns)
        return self._offset_ns + since_ns


def decode_step(torch: Any, device: Cuda | Cpu, shape: Shape) -> Callable[[], None]:
    """One token: the oldest of the window leaves, the likeliest next one comes. The same tensors every time."""
    model = build_decoder(torch, shape, device.device, device.dtype).eval()
    window = torch.randint(VOCABULARY, (1, _WINDOW_TOKENS), device=device.device)

    def step() -> None:
        with torch.no_grad():
            token = model(window)[:, -1].argmax(dim=-1, keepdim=True)
            window.copy_(torch.cat((window[:, 1:], token), dim=1))

    return step


def train_step(torch: Any, device: Cuda | Cpu, shape: Shape) -> Callable[[], None]:
    """One update on the same random batch: what it learns is nobody's business, the kernels are those of learning."""
    model = build_decoder(torch, shape, device.device, device.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randint(VOCABULARY, (1, _TRAINED_TOKENS + 1), device=device.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(
            logits.view(-1, VOCABULARY).float(), batch[:, 1:].reshape(-1)
        )
        loss.backward()
        optimizer.step()

    return step


def spin_step(device: Cuda | Cpu) -> Callable[[], None]:
    def step() -> None:
        for _ in range(SPIN_KERNELS):
            device.spin()

    return step


def count_launches(torch: Any, device: Cuda | Cpu, step: Callable[[], None]) -> tuple[int | None, str]:
    """Kernels, copies and fills of one step as the profiler sees the GPU run them, and why not if it does not.

    Counted twice: a step that differs from the next cannot be multiplied.
    """
    counts = []
    for _ in range(2):
        activities = list(torch.profiler.ProfilerActivity.__members__.values())
        activities = [one for one in activities if one.name in ("CPU", "CUDA")]
        with torch.profiler.profile(activities=activities) as profile:
            step()
            device.sync()
        counts.append(sum(map(_is_work, profile.events())))
    if not counts[0]:
        return (
            None,
            "the profiler saw nothing on the GPU (it may need privileges, see the driver's documentation)",
        )
    if counts[0] != counts[1]:
        return None, f"two steps differ: {counts[0]} and {counts[1]} launches"
    return counts[0], "profiler"


def _is_work(event: Any) -> bool:
    """Whether a profiler's event is something that ran on the GPU."""
    is_note = getattr(event, "is_user_annotation", False) or event.name.startswith(_NO_WORK)
    return "CUDA" in str(event.device_type) and not is_note


class Program:
    """One tenant: makes its step, says what it is, and runs it until it is killed."""

    def __init__(self, options: argparse.Namespace, torch: Any) -> None:
        self._o, self._torch = options, torch
        torch.manual_seed(options.seed)
        self._device: Cuda | Cpu = Cuda(torch) if options.device == "cuda" else Cpu(torch)
        self._log = StepLog(options.log)
        self._gpu_log = StepLog(options.gpu_log) if options.gpu_log else None
        self._shape = self._choose_shape()
        self._plain = self._make_step()
        self.step = self._plain
        for _ in range(_WARM_STEPS):
            self._plain()
        self._device.sync()
        self.launches, self.launches_from = self._count()
        if options.kind == "graph":
            self.step = self._device.graph_of(self._plain)
        self.step_ns = self._time_step()
        self.depth = self._choose_depth()
        self._clock = GpuClock(self._device)

    def _choose_shape(self) -> Shape:
        if self._o.width:
            return Shape(self._o.width, self._o.layers)
        part = TRAINER_PART if self._o.kind == "trainer" else DECODER_PART
        shape = choose_shape(self._device.memory_bytes, part)
        if shape is None:
            raise SystemExit(f"error: {self._device.name} has too little memory for the smallest model")
        return shape

    def _make_step(self) -> Callable[[], None]:
        if self._o.kind == "spin":
            return spin_step(self._device)
        make = train_step if self._o.kind == "trainer" else decode_step
        return make(self._torch, self._device, self._shape)

    def _count(self) -> tuple[int | None, str]:
        if self._o.kind == "spin":
            return SPIN_KERNELS, "known"
        if self._o.kind == "graph":
            return 1, "known"
        if not self._o.count:
            return None, "was not asked for"
        return count_launches(self._torch, self._device, self._plain)

    def _time_step(self) -> int:
        self.step()
        self._device.sync()
        first = self._device.mark()
        for _ in range(_TIMED_STEPS):
            self.step()
        last = self._device.mark()
        self._device.sync()
        return max(1, self._device.between_ns(first, last) // _TIMED_STEPS)

    def _choose_depth(self) -> int:
        if self._o.kind != "trainer":
            return 1
        queue_ms: float = self._o.queue_ms
        return min(_MAX_DEPTH, max(2, round(queue_ms * 1e6 / self.step_ns)))

    def report(self) -> dict[str, Any]:
        """What one step is, for the harness."""
        return {
            "torch": self._torch.__version__,
            "gpu": self._device.name,
            "width": self._shape.width,
            "layers": self._shape.layers,
            "weights": self._shape.weights,
            "step_ns": self.step_ns,
            "depth": self.depth,
            "launches": self.launches,
            "launches_from": self.launches_from,
        }

    def ready(self) -> None:
        """Everything is measured and nothing is left in the queue."""
        self._device.sync()
        self._log.ready()

    def run(self, steps: int) -> None:
        """``steps`` of them, 0 = for ever, never with more than ``depth`` in flight."""
        flying: collections.deque[tuple[int, Any, Any]] = collections.deque()
        begun = 0
        while not steps or begun < steps or flying:
            if not steps or begun < steps:
                start_ns, first = time.monotonic_ns(), self._device.mark()
                self.step()
                flying.append((start_ns, first, self._device.mark()))
                begun += 1
            if len(flying) >= self.depth or begun == steps:
                self._finish(*flying.popleft())
                if self._o.gap_us and self.depth == 1:
                    time.sleep(self._o.gap_us / 1e6)

    def _finish(self, start_ns: int, first: Any, last: Any) -> None:
        if self.depth == 1:
            self._device.sync()
        else:
            self._device.wait(last)
        seen_ns = time.monotonic_ns()
        self._log.step(seen_ns, 1.0, seen_ns - start_ns)
        if self._gpu_log is not None:
            end_ns = self._clock.reached_ns(last, seen_ns)
            self._gpu_log.step(end_ns, 1.0, self._device.between_ns(first, last))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tenant")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--gpu-log", type=Path)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--queue-ms", type=float, default=100.0)
    parser.add_argument("--gap-us", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument(
        "--count", action="store_true", help="count a step's launches: a profiler leaves traces"
    )
    parser.add_argument("--wait", action="store_true", help="begin with the first line of standard input")
    parser.add_argument("--width", type=int, default=0, help="of the model; 0 = chosen by the GPU's memory")
    parser.add_argument("--layers", type=int, default=2)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    import torch

    for _ in range(options.threads):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    program = Program(options, torch)
    options.report.write_text(json.dumps(program.report()))
    program.ready()
    if options.wait and not sys.stdin.readline():
        return  # nobody is there any more who could say so
    with contextlib.suppress(KeyboardInterrupt):
        program.run(options.steps)


if __name__ == "__main__":
    main()
