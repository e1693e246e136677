# SPDX-License-Identifier: Apache-2.0
"""How large the models are (pure): as large as fits as often as the checks need, with room for what else there is.

The standard library only: the tenant imports this in the Python that has PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD_WIDTH = 64
VOCABULARY = 32_000
BYTES_PER_WEIGHT = 2
DECODER_PART = 0.12
"""Of the GPU's memory, for one decoder: four of them, and trainers beside them."""
TRAINER_PART = 0.015
"""For the weights of one trainer; its gradients and activations are several times that."""


@dataclass(frozen=True)
class Shape:
    """A decoder of transformer blocks."""

    width: int
    layers: int

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH

    @property
    def weights(self) -> int:
        """Of the blocks (12 width squared each: 4 of attention, 8 of the feed-forward part) and both embeddings."""
        return 12 * self.layers * self.width**2 + 2 * VOCABULARY * self.width

    @property
    def weights_bytes(self) -> int:
        return self.weights * BYTES_PER_WEIGHT


SHAPES = (
    Shape(512, 8),
    Shape(768, 12),
    Shape(1024, 24),
    Shape(1536, 24),
    Shape(2048, 24),
    Shape(2560, 32),
    Shape(4096, 32),
    Shape(5120, 40),
)


def choose_shape(memory_bytes: int, part: float) -> Shape | None:
    """The largest that fits into a part of the GPU's memory; None when not even the smallest does."""
    fitting = [shape for shape in SHAPES if shape.weights_bytes <= memory_bytes * part]
    return fitting[-1] if fitting else None
