# SPDX-License-Identifier: Apache-2.0
"""A decoder-only transformer with random weights, in the usual layout. PyTorch comes as an argument."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.shapes import VOCABULARY, Shape


def build_decoder(torch: Any, shape: Shape, device: Any, dtype: Any) -> Any:
    """Made on the device at once: a large model need not fit into the host's memory."""
    nn, functional = torch.nn, torch.nn.functional
    made = {"device": device, "dtype": dtype}

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before_attention = nn.LayerNorm(shape.width, **made)
            self.inputs = nn.Linear(shape.width, 3 * shape.width, bias=False, **made)
            self.output = nn.Linear(shape.width, shape.width, bias=False, **made)
            self.before_feed = nn.LayerNorm(shape.width, **made)
            self.widen = nn.Linear(shape.width, 4 * shape.width, bias=False, **made)
            self.narrow = nn.Linear(4 * shape.width, shape.width, bias=False, **made)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = self.inputs(self.before_attention(x)).view(batch, length, 3, shape.heads, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.output(seen.transpose(1, 2).reshape(batch, length, width))
            return x + self.narrow(functional.gelu(self.widen(self.before_feed(x))))

    class Decoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, shape.width, **made)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.last = nn.LayerNorm(shape.width, **made)
            self.unembed = nn.Linear(shape.width, VOCABULARY, bias=False, **made)

        def forward(self, tokens: Any) -> Any:
            """Logits of the token after each one."""
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.unembed(self.last(x))

    return Decoder()
