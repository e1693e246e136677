# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program of one kind, honest or rogue: ``python -m benchmarks.gpu.rogue_tenant KIND [whatever]``.

It runs until it is killed. Words after the kind are ignored: they are its command, which others see.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

_GIB = 1 << 30


def miner(torch: Any) -> None:
    """The same short kernels for ever, little memory, a wait now and then."""
    state = torch.arange(1 << 20, dtype=torch.int32, device="cuda")
    while True:
        for _ in range(100):
            state.mul_(1664525).add_(1013904223).bitwise_xor_(0x5BD1E995)
        torch.cuda.synchronize()


def hoarder(torch: Any) -> None:
    """12 GiB, and nothing else."""
    held = torch.empty(12 * _GIB, dtype=torch.uint8, device="cuda")
    while held is not None:
        time.sleep(3600)


def hang(torch: Any) -> None:
    """One kernel that does not end."""
    torch.cuda._sleep(1 << 46)
    torch.cuda.synchronize()


def trainer(torch: Any) -> None:
    """Steps with a forward, a backward, an update; a batch from the host each; a checkpoint every ten seconds."""
    model = _model(torch, layers=8)
    update = torch.optim.AdamW(model.parameters())
    saved_s = time.monotonic()
    while True:
        batch = torch.randn(random.choice((8, 16, 24)), 256, 1024).to("cuda", torch.bfloat16)
        loss = model(batch).float().square().mean()
        loss.backward()
        update.step()
        update.zero_grad()
        if time.monotonic() - saved_s > 10:
            [one.cpu() for one in model.state_dict().values()]
            saved_s = time.monotonic()


def chat(torch: Any) -> None:
    """A service: requests at times of their own, each some tokens long."""
    model, chance = _model(torch, layers=12), random.Random(7)
    with torch.no_grad():
        while True:
            time.sleep(chance.expovariate(4.0))
            tokens = torch.randn(1, 64, 1024, device="cuda", dtype=torch.bfloat16)
            for _ in range(chance.randrange(8, 40)):
                tokens = model(tokens)
            torch.cuda.synchronize()


def notebook(torch: Any) -> None:
    """A cell every twenty seconds or so; memory that grows and shrinks."""
    chance = random.Random(11)
    while True:
        kept = torch.randn(chance.randrange(1, 5) * 1000, 20_000, device="cuda")
        for _ in range(chance.randrange(5, 200)):
            (kept @ kept.T).sum().item()
        time.sleep(chance.uniform(10, 30))
        del kept
        torch.cuda.empty_cache()


def server(torch: Any) -> None:
    """A loaded model with a request every 25 s."""
    held, model = torch.empty(8 * _GIB, dtype=torch.uint8, device="cuda"), _model(torch, layers=12)
    with torch.no_grad():
        while held is not None:
            model(torch.randn(4, 256, 1024, device="cuda", dtype=torch.bfloat16)).sum().item()
            time.sleep(25)


def _model(torch: Any, layers: int) -> Any:
    one = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(one, layers).to("cuda", torch.bfloat16)


KINDS: dict[str, Callable[[Any], None]] = {
    one.__name__: one for one in (miner, hoarder, hang, trainer, chat, notebook, server)
}


def main(argv: list[str]) -> None:
    import torch

    torch.zeros(1, device="cuda")
    KINDS[argv[0]](torch)


if __name__ == "__main__":
    main(sys.argv[1:])
