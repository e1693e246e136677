# SPDX-License-Identifier: Apache-2.0
"""What no single field can know: overlapping claims, guarantees that do not fit, modes that cannot work.

Pure functions over a :class:`Config` whose fields are valid by themselves. A problem is
``(key path, what is wrong, remedy)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fairsched.config import escalation, guard, patterns, reclaim
from fairsched.config.match import in_words
from fairsched.config.tokens import MAX_ALL_URLS
from fairsched.config.yamlfile import KeyPath

if TYPE_CHECKING:
    from fairsched.config.models import Child, Config, Tenant

Problem = tuple[KeyPath, str, str]

_Claim = tuple[str, str, tuple[str | int, ...]]
"""(tenant, pattern, key below the tenant)."""

_SLACK = 1e-9
"""Ten guarantees of 10 % are 100 %, whatever binary fractions say."""


def problems(config: Config) -> Iterator[Problem]:
    """Every contradiction in `config`, cheapest checks first."""
    yield from _modes(config)
    yield from _dcgm(config)
    yield from _levels(config)
    yield from _pods(config)
    yield from _guarantees(config)
    yield from _tokens(config)
    yield from _overlaps(config)
    yield from escalation.problems(config.escalation)
    yield from reclaim.problems(config.reclaim)
    yield from guard.problems(config.guard)


def _modes(config: Config) -> Iterator[Problem]:
    if config.inner_tick_ms > config.tick_ms:
        yield (
            ("inner_tick_ms",),
            f"{config.inner_tick_ms} is longer than tick_ms {config.tick_ms}",
            "the inner tick is the fast one: make it tick_ms or less",
        )
    brake, freezer = config.mechanisms.brake, config.mechanisms.freezer
    if config.mode == "enforce" and not config.mechanisms.can_hold:
        yield (
            ("mechanisms", "brake" if brake == "none" else "freezer"),
            "mode enforce cannot work " + ("without a brake" if brake == "none" else "with the freezer off"),
            f"set mechanisms.{'brake' if brake == 'none' else 'freezer'} to auto, or mode to observe",
        )
    is_other = brake not in ("auto", "freezer")
    if (brake == "freezer" and freezer == "off") or (is_other and freezer == "required"):
        yield (
            ("mechanisms", "brake"),
            f"brake is {brake}, but mechanisms.freezer is {freezer}",
            "set one of them to auto",
        )
    if brake == "cgpu" and config.cgpu.share_file is None:
        yield (
            ("mechanisms", "brake"),
            "brake is cgpu, but cgpu.share_file names no file that takes the shares",
            "name that of your vendor's module, such as /proc/cgpu_km/{gpu}/{container12}/weight",
        )
    if config.mechanisms.device_gate == "required" and config.mode != "enforce":
        yield (
            ("mechanisms", "device_gate"),
            f"the device gate is in force in mode enforce only, and mode is {config.mode}",
            "set mode to enforce, or mechanisms.device_gate to auto",
        )
    source = config.gpu.source
    if source in ("ebpf", "trace", "nvml") and getattr(config.mechanisms, source) == "off":
        yield (
            ("mechanisms", source),
            f"gpu.source is {source}, but the mechanism is off",
            f"set mechanisms.{source} to auto, or gpu.source to auto",
        )
    if source == "trace" and config.mechanisms.nvml == "off":
        yield (
            ("mechanisms", "nvml"),
            "gpu.source is trace, and which GPUs there are is told by NVML, which is off",
            "set mechanisms.nvml to auto, or gpu.source to auto",
        )


def _dcgm(config: Config) -> Iterator[Problem]:
    gpu = config.gpu
    if gpu.dcgm == "off":
        for key, value in (("dcgm_address", gpu.dcgm_address), ("dcgm_exporter", gpu.dcgm_exporter)):
            if value is not None:
                yield (
                    ("gpu", key),
                    "nobody asks there, as gpu.dcgm is off",
                    "set gpu.dcgm to auto, or remove it",
                )
        if gpu.source == "dcgm":
            yield (
                ("gpu", "dcgm"),
                "gpu.source is dcgm, but it is off",
                "set gpu.dcgm to auto, or gpu.source to auto",
            )
    if config.mechanisms.nvml == "off" and (gpu.source == "dcgm" or gpu.dcgm == "required"):
        yield (
            ("mechanisms", "nvml"),
            "DCGM scales the samples of NVML, which is off",
            "set mechanisms.nvml to auto, or gpu.dcgm to auto and gpu.source to auto",
        )


def _levels(config: Config) -> Iterator[Problem]:
    from fairsched.config.models import MAX_LEVELS, walk

    for path, node in walk(config.tenants):
        key = key_of(path)
        if path.count("/") >= MAX_LEVELS:
            yield key, f"deeper than {MAX_LEVELS} levels", "flatten the children"
        if not patterns.is_literal(path) and node.min:
            yield (
                (*key, "min"),
                "a pattern may match any number of cgroups, so nothing can be guaranteed to each",
                "give min to the parent, or name the child",
            )
        globs = [name for name in node.children if not patterns.is_literal(name)]
        for index, first in enumerate(globs):
            for second in globs[index + 1 :]:
                example = patterns.component_overlap(first, second)
                if example is not None:
                    yield (
                        (*key, "children", second),
                        f"overlaps with '{first}': both match a child called '{example}'",
                        "make the patterns disjoint; only a plain name wins over a pattern",
                    )


def _pods(config: Config) -> Iterator[Problem]:
    from fairsched.config.models import walk

    by_pod = {name for name, node in config.tenants.items() if node.children_are == "pods"}
    for name in by_pod:
        match = config.tenants[name].match
        spaces = {one.partition("/")[0] for one in (match.pod if match is not None else None) or ()}
        if (
            config.tenants[name].cgroup is not None
            or len(spaces) != 1
            or not all(map(patterns.is_literal, spaces))
        ):
            yield (
                (*key_of(name), "children_are"),
                "pods of one namespace can be children, and `match.pod` does not name one",
                'give match: {pod: "NAMESPACE/*"} and no cgroup',
            )
        yield from _pod_overlaps(name, config.tenants[name].children)
    for path, node in walk(config.tenants):
        parent = path.rpartition("/")[0]
        if "/" in path and getattr(node, "pods", None) is not None and parent not in by_pod:
            yield (
                (*key_of(path), "pods"),
                "its parent's children are cgroups",
                "set children_are of the parent to pods, or remove it",
            )
        if parent in by_pod and node.children:
            yield (*key_of(path), "children"), "a pod has no children here", "remove them"


def _pod_overlaps(name: str, children: Mapping[str, Child]) -> Iterator[Problem]:
    """Of `pods` with each other and with names; those of names with each other are looked at as of cgroups."""
    plain: dict[str, str] = {}
    globs: list[tuple[str, str]] = []
    for child, node in children.items():
        for glob in node.pods or (child,):
            is_plain = patterns.is_literal(glob)
            others = [(glob, plain[glob])] if glob in plain else [] if is_plain else globs
            for other_glob, other in others:
                example = patterns.component_overlap(glob, other_glob)
                if other != child and example is not None and (node.pods or children[other].pods):
                    yield (
                        ("tenants", name, "children", child, "pods"),
                        f"'{glob}' overlaps with '{other_glob}' of '{other}': both match a pod called '{example}'",
                        "make the names disjoint; only a plain name wins over a pattern",
                    )
            if is_plain:
                plain.setdefault(glob, child)
            else:
                globs.append((glob, child))


def _guarantees(config: Config) -> Iterator[Problem]:
    from fairsched.config.models import walk

    total = 0.0
    for path, node in walk(config.tenants):
        key = key_of(path)
        spec = config.spec(path, node)
        if "/" not in path:
            total += spec.min_ratio
        if spec.quota_ratio is not None and spec.min_ratio > spec.quota_ratio + _SLACK:
            yield (
                (*key, "min"),
                f"min {spec.min_ratio:g} is more than quota {spec.quota_ratio:g}",
                "lower min or raise quota",
            )
        needed = sum(child.min or 0.0 for child in node.children.values())
        if needed > spec.min_ratio + _SLACK:
            yield (
                (*key, "children"),
                f"the children are guaranteed {needed:g} together, their parent {spec.min_ratio:g}",
                f"set {'.'.join(map(str, key))}.min to at least {needed:g}",
            )
    if total > 1 + _SLACK:
        yield (
            ("tenants",),
            f"the guarantees (min) add up to {total:g} of a GPU, more than there is",
            "lower some until the sum is 1 or less",
        )


def _tokens(config: Config) -> Iterator[Problem]:
    from fairsched.config.models import walk

    claims: dict[tuple[str, str], str] = {}
    for path, node in walk(config.tenants):
        key = key_of(path)
        if not node.tokens_url:
            for name in ("tokens_metric", "token_cost_ms"):
                if (
                    name in node.model_fields_set
                    and getattr(node, name) != type(node).model_fields[name].default
                ):
                    yield (
                        (*key, name),
                        "without a tokens_url there are no tokens",
                        "give tokens_url, or remove it",
                    )
            continue
        if node.children or not patterns.is_literal(path):
            why = "its children get the GPU time" if node.children else "it may be any number of tenants"
            yield (
                (*key, "tokens_url"),
                f"{why}, and tokens belong to one",
                "give it to a child by its plain name",
            )
        for number, url in enumerate(node.tokens_url):
            other = claims.setdefault((url, node.tokens_metric), path)
            if other != path:
                yield (
                    (*key, "tokens_url", number),
                    f"the same counters are those of tenant '{other}'",
                    'give each its own page, or a tokens_metric with labels: name{label="value"}',
                )
    if len(claims) > MAX_ALL_URLS:
        yield (
            ("tenants",),
            f"{len(claims)} addresses of metrics pages, and at most {MAX_ALL_URLS} are read",
            "put fewer replicas on one node, or name one page that adds them up",
        )


def _overlaps(config: Config) -> Iterator[Problem]:
    """By path, by name, and the paths of one with the usual places of what another has by name."""
    paths: list[_Claim] = [
        (name, pattern, ("cgroup", index))
        for name in config.tenants
        for index, pattern in enumerate(config.cgroup_patterns(name))
    ]
    named = [(name, node.match) for name, node in config.tenants.items() if node.match is not None]
    claims: list[_Claim] = [(name, claim, ("match",)) for name, match in named for claim in match.claims()]
    for name, pattern, key, other, claimed, example in _meetings(paths):
        yield (
            ("tenants", name, *key),
            f"'{pattern}' overlaps with '{claimed}' of tenant '{other}': both claim {example}",
            "a cgroup has one owner: make the patterns disjoint, or use children",
        )
    for name, pattern, key, other, claimed, example in _meetings(claims):
        yield (
            ("tenants", name, *key),
            f"'{in_words(pattern)}' overlaps with '{in_words(claimed)}' of tenant '{other}': both match "
            f"{in_words(example)}",
            "a cgroup has one owner: make the names disjoint",
        )
    at: dict[str, list[str]] = {}
    for name, match in named:
        for place in match.places():
            at.setdefault(place, []).append(name)
    # A thousand tenants have containers at one place: a path that meets one of two different tenants' is enough.
    places: list[_Claim] = [(name, place, ("match",)) for place, names in at.items() for name in names[:2]]
    for name, pattern, key, other, claimed, example in _meetings(paths + places, is_mixed=True):
        yield (
            ("tenants", name, *key),
            f"'{pattern}' overlaps with '{claimed}' of tenant '{other}': both may claim {example}",
            "a cgroup has one owner: give both by `match`, or make the patterns disjoint",
        )


def _meetings(
    claims: list[_Claim], *, is_mixed: bool = False
) -> Iterator[tuple[str, str, tuple[str | int, ...], str, str, str]]:
    """(tenant, pattern, key, other tenant, its pattern, example) of those that overlap. ``is_mixed``: only those of
    which one is of `cgroup` and one of `match`."""
    for later, earlier in patterns.near_pairs(pattern for _, pattern, _ in claims):
        (name, pattern, key), (other, claimed, other_key) = claims[later], claims[earlier]
        if other == name or (is_mixed and (key[0] == other_key[0])):
            continue  # one tenant may well say the same thing twice
        example = patterns.overlap(claimed, pattern)
        if example is not None:
            yield name, pattern, key, other, claimed, example


def key_of(path: str) -> KeyPath:
    """KeyPath path in the file of the tenant path ``team/chat``."""
    return ("tenants", *"/children/".join(path.split("/")).split("/"))


def node_at(tenants: Mapping[str, Tenant], path: str) -> Tenant | Child | None:
    """The tenant or child the file gives at `path`; None when it gives none by that very name."""
    name, *rest = path.split("/")
    node: Tenant | Child | None = tenants.get(name)
    for part in rest:
        node = node.children.get(part) if node is not None else None
    return node
