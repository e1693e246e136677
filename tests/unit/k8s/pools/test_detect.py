# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a node has, by GFD's labels and by NVML's names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.k8s.pools.detect import Detected, accelerator_of, detect, from_products
from fairsched.k8s.pools.schema import _label_value

PRODUCTS = {
    "NVIDIA-H100-80GB-HBM3": "h100",
    "NVIDIA H100 PCIe": "h100",
    "NVIDIA H100 NVL": "h100",
    "NVIDIA-H200": "h200",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA B200": "b200",
    "A100-SXM4-40GB": "a100",
    "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb": "a100",
    "NVIDIA-A100-SXM4-40GB-MIG-INVALID": "a100",
    "NVIDIA-A100-PCIE-40GB-SHARED": "a100",
    "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED": "a100",
    "NVIDIA A30": "a30",
    "NVIDIA A10G": "a10g",
    "NVIDIA A10": "a10",
    "NVIDIA A2": "a2",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "Tesla-T4": "t4",
    "Tesla T4-SHARED": "t4",
    "Tesla-V100-SXM2-16GB": "v100",
    "Tesla-P100-PCIE-16GB": "p100",
    "Tesla K80": "k80",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 3080 Ti Laptop GPU": "rtx-3080-ti",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "Quadro RTX 6000": "rtx-6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-blackwell-server-edition",
    "NVIDIA": "nvidia",
    "***": "unknown",
}


@pytest.mark.parametrize(("product", "accelerator"), PRODUCTS.items())
def test_a_product_is_one_word(product: str, accelerator: str) -> None:
    assert accelerator_of(product) == accelerator


@given(st.text())
def test_whatever_a_product_is_called_the_word_can_be_a_label(product: str) -> None:
    word = accelerator_of(product)
    assert word and _label_value(word) == word


def node(capacity: dict[str, str] | None = None, **labels: str) -> dict[str, Any]:
    words = {f"nvidia.com/{key.replace('_', '.')}": value for key, value in labels.items()}
    return {"metadata": {"name": "n", "labels": words}, "status": {"capacity": capacity or {}}}


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (node(), None),
        (node(gpu_count="8"), None),
        (node(gpu_product="NVIDIA-H100-80GB-HBM3", gpu_count="8", mig_capable="true"), ("h100", 8, "off")),
        (node(gpu_product="Tesla-T4", gpu_count="4", mig_capable="false"), ("t4", 4, "none")),
        (node(gpu_product="Tesla-T4", gpu_count="4"), ("t4", 4, None)),
        (node(gpu_product="Tesla-T4", gpu_count="many"), ("t4", None, None)),
        (node(gpu_product="Tesla-T4", gpu_count="0"), ("t4", None, None)),
        (node(gpu_product="Tesla-T4-SHARED", gpu_count="4", gpu_replicas="10"), ("t4", 4, None)),
        (
            node(gpu_product="A100-SXM4-40GB-MIG-1g.5gb", gpu_count="56", mig_strategy="single"),
            ("a100", None, "on"),
        ),
        (
            node({"nvidia.com/mig-1g.5gb": "7"}, gpu_product="A100-SXM4-40GB", gpu_count="1", mig_capable="true"),
            ("a100", 1, "on"),
        ),
        (
            node({"nvidia.com/mig-1g.5gb": "0"}, gpu_product="A100-SXM4-40GB", gpu_count="1", mig_capable="true"),
            ("a100", 1, "off"),
        ),
    ],
)  # fmt: skip
def test_what_gfd_says(document: dict[str, Any], found: tuple[str, int | None, str | None] | None) -> None:
    assert detect(document) == (None if found is None else Detected(*found, "gfd"))


@pytest.mark.parametrize(
    ("products", "found"),
    [
        ([], None),
        ([("NVIDIA H100 80GB HBM3", False)] * 8, ("h100", 8, "off")),
        ([("NVIDIA H100 80GB HBM3", False), ("NVIDIA H100 80GB HBM3", True)], ("h100", 2, "on")),
        ([("Tesla T4", False)], ("t4", 1, "none")),
        ([("Tesla T4", False), ("NVIDIA L4", False)], ("mixed", 2, "none")),
    ],
)
def test_what_nvml_says(products: list[tuple[str, bool]], found: tuple[str, int, str] | None) -> None:
    assert from_products(products) == (None if found is None else Detected(*found, "nvml"))
