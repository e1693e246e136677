# SPDX-License-Identifier: Apache-2.0
"""Files of pools, nodes in the model, and the way of a plan there and back."""

from __future__ import annotations

from typing import Any, cast

from fairsched.k8s.client import KubeClient
from fairsched.k8s.pools import carry
from fairsched.k8s.pools.backup import plan_back, read, write
from fairsched.k8s.pools.carry import Outcome
from fairsched.k8s.pools.desired import wanted_nodes, wanted_objects
from fairsched.k8s.pools.plan import Step, plan
from fairsched.k8s.pools.schema import Pools, problems
from tests.unit.k8s.pools.model import Model

QUOTA = "/api/v1/namespaces/ml/resourcequotas/fairsched-pools"
PRIORITY = "/apis/scheduling.k8s.io/v1/priorityclasses/gpu"


def pools(**keys: Any) -> Pools:
    made = Pools.model_validate(keys)
    assert list(problems(made)) == []
    return made


def pool(**keys: Any) -> Pools:
    return pools(pools={"p": {"nodes": {"names": "*"}, **keys}})


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect} if value else {"key": key, "effect": effect}


def node(model: Model, name: str = "n1", *, taints: list[dict[str, str]] | None = None, **labels: str) -> str:
    path = f"/api/v1/nodes/{name}"
    spec = {"spec": {"taints": taints}} if taints else {}
    words = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    model.put(path, {"metadata": {"name": name, "labels": words}, **spec})
    return path


def gpus(product: str = "NVIDIA-H100-80GB-HBM3", count: int = 8) -> dict[str, str]:
    return {
        "nvidia.com__gpu_product": product,
        "nvidia.com__gpu_count": str(count),
        "nvidia.com__mig_capable": "true",
    }


def client(model: Model) -> KubeClient:
    return cast(KubeClient, model)


def planned(model: Model, wish: Pools | None, *, with_taints: bool = True, prunes: bool = True) -> list[Step]:
    nodes = carry.nodes(client(model))
    wanted = list(wanted_objects(wish)) if wish is not None and prunes else []
    lives = carry.with_named(client(model), carry.marked(client(model)), [one.ref for one in wanted])
    wishes = [*wanted, *wanted_nodes(wish, nodes, with_taints=with_taints)]
    return plan(wishes, [*lives, *(one.live for one in nodes)], prunes=prunes)


def apply(model: Model, wish: Pools, *, force: bool = False) -> list[Outcome]:
    return list(carry.carry_out(client(model), planned(model, wish), force=force))


def label(model: Model, wish: Pools | None = None) -> list[Outcome]:
    steps = planned(model, wish, with_taints=False, prunes=False)
    return list(carry.carry_out(client(model), steps, force=False))


def planned_back(model: Model, text: str) -> list[Step]:
    saved = read(text.encode(), "b")
    lives = [one.live for one in carry.nodes(client(model))] + carry.marked(client(model))
    lives = carry.with_named(client(model), lives, [one.ref for one in saved if one.ref.kind != "Node"])
    return list(plan_back(saved, lives))


def back(model: Model, text: str) -> list[Outcome]:
    return list(carry.carry_out(client(model), planned_back(model, text), force=False))


def saved(model: Model) -> str:
    return write(carry.everything(client(model)))


def labels(model: Model, path: str) -> dict[str, str]:
    return dict(model.objects[path]["metadata"].get("labels", {}))


def taints(model: Model, path: str) -> list[dict[str, str]]:
    return list(model.objects[path].get("spec", {}).get("taints", []))


def errors(outcomes: list[Outcome]) -> list[str]:
    return [f"{one.step.ref}: {one.error}" for one in outcomes if one.error]
