# SPDX-License-Identifier: Apache-2.0
"""What GPUs a node has (pure): by the labels of NVIDIA's GPU feature discovery (GFD), else by what NVML says there.

Terms. *accelerator*: the product as one word, such as h100, a100, l4, t4, v100, rtx-6000-ada; ``mixed`` where a node
has several. *mig*: ``on`` some GPU is split, ``off`` none is and it could be, ``none`` they cannot; None: it is not
known.

With GFD's MIG strategy ``single`` its gpu.count is that of instances, and how many GPUs there are is not known.
A node without any of it is not known: absent is not zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairsched.k8s.objects import labels_of

GFD = "nvidia.com/"
PRODUCT, COUNT, CAPABLE = f"{GFD}gpu.product", f"{GFD}gpu.count", f"{GFD}mig.capable"
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-[0-9].*")
_MIG_COUNT = re.compile(r"nvidia\.com/mig-[0-9][^/]*\.count")
_SUFFIX = re.compile(r"(?i)-MIG-(INVALID|[0-9]+g\..*|[0-9]+c\..*)$|-SHARED$|-SHARING$")
_NOISE = re.compile(
    "nvidia|tesla|quadro|geforce|gpu|graphics|device|laptop|generation|shared|mig|sxm[0-9]?|pcie|pci|nvl|fhhl|hbm[0-9]e?"
)
_MEMORY = re.compile(r"[0-9]+(gb|gib|g)")
_MIG_CAPABLE = re.compile(
    r"a30|a100x?|a800|h100|h200|h800|h20|gh200|b100|b200|b300|gb200|gb300|rtx-pro-6000.*"
)
"""Products that NVIDIA's MIG user guide lists."""


@dataclass(frozen=True)
class Detected:
    """The GPUs of one node."""

    accelerator: str
    count: int | None
    """Whole GPUs."""
    mig: str | None
    by: str
    """gfd or nvml."""


def accelerator_of(product: str) -> str:
    """``NVIDIA H100 80GB HBM3`` and ``NVIDIA-H100-80GB-HBM3`` are ``h100``.

    What only says how a board is built (memory, form, vendor) is left out; an unknown product keeps all other words.
    """
    bare = _SUFFIX.sub("", _SUFFIX.sub("", product.strip()))
    words = [word for word in re.split(r"[^a-z0-9]+", bare.lower()) if word]
    kept = [word for word in words if not _NOISE.fullmatch(word) and not _MEMORY.fullmatch(word)]
    text = "-".join(kept or words)[:63].strip("-")
    return text or "unknown"


def detect(node: Mapping[str, Any]) -> Detected | None:
    """By a Node; None: GFD has said nothing."""
    labels = labels_of(node)
    product = labels.get(PRODUCT)
    if not isinstance(product, str) or not product:
        return None
    is_split = bool(re.search(r"(?i)-MIG-", product)) or _has_instances(node, labels)
    capable = labels.get(CAPABLE)
    mig = "on" if is_split else {"true": "off", "false": "none"}.get(str(capable))
    count = labels.get(COUNT)
    is_of_instances = bool(re.search(r"(?i)-MIG-", product)) or (
        labels.get(f"{GFD}mig.strategy") == "single" and is_split
    )
    number = (
        int(count) if isinstance(count, str) and count.isascii() and count.isdigit() and len(count) < 6 else 0
    )
    is_known = number > 0 and not is_of_instances
    return Detected(accelerator_of(product), number if is_known else None, mig, "gfd")


def _has_instances(node: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    capacity = (node.get("status") or {}).get("capacity") or {}
    return any(
        _MIG_RESOURCE.fullmatch(name) and str(value) != "0" for name, value in capacity.items()
    ) or any(_MIG_COUNT.fullmatch(name) and str(value) != "0" for name, value in labels.items())


def from_products(products: Iterable[tuple[str, bool]]) -> Detected | None:
    """By what NVML says: (name, whether it is split) of each whole GPU; None: there is none."""
    listed = list(products)
    names = sorted({accelerator_of(name) for name, _ in listed})
    if not listed:
        return None
    if any(split for _, split in listed):
        mig = "on"
    else:
        mig = "off" if any(_MIG_CAPABLE.fullmatch(name) for name in names) else "none"
    return Detected(names[0] if len(names) == 1 else "mixed", len(listed), mig, "nvml")
