# SPDX-License-Identifier: Apache-2.0
"""Tenants that come of pods, as a layer between the file and the overrides (fairsched/companion/pods has the why).

The file is the person's: a tenant that it names is not touched by this layer. The daemon keeps the layer in
``state_dir/pods.yaml``, for a start without an API server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairsched.config.loader import from_document, read_file
from fairsched.config.models import Config
from fairsched.config.yamlfile import Document, parse
from fairsched.errors import ConfigError

Layer = Mapping[str, Any]
"""Tenants by name, as in the file."""
_HEADER = "# Written by fairsched: what labels and annotations of pods came to last (docs/kubernetes.md).\n"


def layer_path(config: Config) -> Path:
    return config.state_dir / "pods.yaml"


def with_layer(config: Config, layer: Layer) -> Config:
    """`config` with these tenants. Raises ConfigError where they do not fit, naming each of them that does not."""
    if not layer:
        return config
    data = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["tenants"] = {**layer, **data.get("tenants", {})}
    return from_document(Document(data), "pods")


def policy_of(config: Config, path: str) -> str | None:
    """Where the values of a tenant or child come from, where that is neither the file nor itself."""
    name, _, below = path.partition("/")
    node = config.tenants.get(name)
    if node is None or not below:
        return None if node is None else node.policy
    child = node.children.get(below) or node.children.get("*")
    return node.policy if child is None else child.policy


def fitting(config: Config, layer: Layer) -> tuple[Layer, dict[str, str]]:
    """The part of a layer that `config` takes, and why it does not take the rest, by tenant."""
    refused = {name: "it is a tenant of the file" for name in layer if name in config.tenants}
    wanted = {name: node for name, node in layer.items() if name not in refused}
    try:
        with_layer(config, wanted)
        return wanted, refused
    except ConfigError:
        pass  # some of them do not fit: one after the other
    taken: dict[str, Any] = {}
    for name, node in sorted(wanted.items()):
        try:
            with_layer(config, {**taken, name: node})
            taken[name] = node
        except ConfigError as error:
            refused[name] = str(error)
    return taken, refused


def load_layer(path: Path) -> Layer:
    """What was kept; no file is no tenants. Raises ConfigError when the file is damaged."""
    if not path.exists():
        return {}
    data = parse(read_file(path), str(path)).data
    tenants = data.get("tenants") if isinstance(data, dict) else None
    if not isinstance(tenants, dict):
        raise ConfigError(
            "has no mapping 'tenants'", file=str(path), remedy="delete the file: it is written anew"
        )
    return tenants


def layer_text(layer: Layer) -> str:
    """What the file holds."""
    text = _HEADER + "tenants:" + ("" if layer else " {}") + "\n"
    for name, node in sorted(layer.items()):
        text += f"  {json.dumps(name)}: {json.dumps(node)}\n"  # JSON is YAML
    return text
