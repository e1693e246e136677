# SPDX-License-Identifier: Apache-2.0
"""The section `match` of a tenant: its cgroups by what people call them, whatever the paths.

Problem: the cgroup of a container has an id in its path that is new at each start, that of a pod a uid; no pattern of
paths finds them by the names that people gave.

Approach: what is matched is written as a path of names, a *claim*: ``docker/chat-*``, ``pod/ml/llama-*``,
``user/alice/jupyter.service``, ``slurm/1000/55``. So patterns and their overlaps are those of cgroup paths, decided by
the same code. A cgroup has such a path for each layer of it that the host made (cgroup/identity.py); with every name it
is known by, and with its id, too.

Terms: a *domain* is the first component of a claim. Claims of two domains never overlap; where a cgroup lies below
two of them, the outer one has it.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from fairsched.cgroup.identity import Kind, Layer
from fairsched.cgroup.names import Book, Names, name_of
from fairsched.config import patterns
from fairsched.config.section import Section

MAX_GLOBS = 64
_NOT_KNOWN = "-"
"""In the place of the user of a job whose path does not say: no user has this name."""
_UNIT_TYPES = (".service", ".scope")


def check_glob(text: str) -> str:
    """One name, or a pattern of names. Raises ValueError with a plain sentence."""
    if "/" in text or text == "**":
        raise ValueError(f"{text[:80]!r}: a name or a pattern of one (* ?), without '/'")
    return patterns.normalise(text) if text else _refuse_empty()


def _refuse_empty() -> str:
    raise ValueError("an empty name; write '*' for all of them")


def _check_pod(text: str) -> str:
    namespace, slash, name = text.partition("/")
    if not slash:
        raise ValueError(f"{text[:80]!r}: write NAMESPACE/NAME, such as '*/{text[:40] or 'chat-*'}'")
    return f"{check_glob(namespace)}/{check_glob(name)}"


def _check_unit(text: str) -> str:
    unit = check_glob(text)
    if unit.endswith(".slice"):
        raise ValueError(f"{text[:80]!r}: a slice is matched by its path: cgroup: {text[:40]}")
    if not unit.endswith((*_UNIT_TYPES, "*")):
        raise ValueError(f"{text[:80]!r}: write the unit with its type, such as {text[:40]}.service")
    return unit


def _globs(check: Any) -> BeforeValidator:
    """One or a list of them; numbers of jobs and users may be written as numbers."""

    def validate(value: Any) -> Any:
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if not items:
            raise ValueError("at least one name is needed")
        plain = [str(item) if type(item) is int else item for item in items]
        return tuple(check(item) if isinstance(item, str) else item for item in plain)

    return BeforeValidator(validate)


_SHAPE = WithJsonSchema(
    {
        "anyOf": [
            {"type": ["string", "integer"]},
            {"type": "array", "items": {"type": ["string", "integer"]}, "maxItems": MAX_GLOBS},
        ]
    }
)
NameGlobs = Annotated[tuple[str, ...], _globs(check_glob), Field(max_length=MAX_GLOBS), _SHAPE]
PodGlobs = Annotated[tuple[str, ...], _globs(_check_pod), Field(max_length=MAX_GLOBS), _SHAPE]
UnitGlobs = Annotated[tuple[str, ...], _globs(_check_unit), Field(max_length=MAX_GLOBS), _SHAPE]


class Match(Section):
    """One of these, or `user` with `unit`, or `slurm_user` with `slurm_job`: a name, a pattern (* ?), or a list."""

    docker: NameGlobs | None = Field(
        default=None, description="Containers of docker that are in no pod, by name or id."
    )
    podman: NameGlobs | None = Field(
        default=None,
        description="Containers of root's podman, by name or id; those of a user are the user's.",
    )
    containerd: NameGlobs | None = Field(
        default=None, description="Containers of containerd that are in no pod, by nerdctl's name, or id."
    )
    pod: PodGlobs | None = Field(
        default=None, description="Pods of Kubernetes, whatever their runtime, as NAMESPACE/NAME."
    )
    slurm_job: NameGlobs | None = Field(
        default=None, description="Jobs of Slurm, by number (Slurm 26.05 and later: by SLUID)."
    )
    slurm_user: NameGlobs | None = Field(
        default=None,
        description="Users of Slurm jobs, by name or number, where the path has it: uid_N, not below "
        "slurmstepd.scope.",
    )
    lxc: NameGlobs | None = Field(default=None, description="Containers of LXC, LXD and Incus, by name.")
    unit: UnitGlobs | None = Field(
        default=None,
        description="Services and scopes of systemd, as systemctl prints them; of the system, or with `user` of "
        "that user.",
    )
    user: NameGlobs | None = Field(
        default=None, description="Users who are logged in or linger, by name or number: all of user-N.slice."
    )

    @model_validator(mode="after")
    def _is_one_thing(self) -> Match:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if not given:
            raise ValueError(f"names nothing: give one of {', '.join(type(self).model_fields)}")
        if len(given) > 1 and set(given) not in ({"unit", "user"}, {"slurm_job", "slurm_user"}):
            raise ValueError(
                f"{' and '.join(given)} cannot be one cgroup: make them tenants of their own, or give patterns in "
                "`cgroup`"
            )
        return self

    def claims(self) -> tuple[str, ...]:
        """What it claims, as patterns of paths of names."""
        if self.user is not None:
            rest = [f"/{unit}" for unit in self.unit or ()] or [""]
            return tuple(f"user/{user}{unit}" for user, unit in itertools.product(self.user, rest))
        if self.slurm_user is not None or self.slurm_job is not None:
            rest = [f"/{job}" for job in self.slurm_job or ()] or [""]
            return tuple(
                f"slurm/{user}{job}" for user, job in itertools.product(self.slurm_user or "*", rest)
            )
        return tuple(f"{name}/{glob}" for name in _PLAIN for glob in getattr(self, name) or ())

    def places(self) -> tuple[str, ...]:
        """Patterns of paths where runtimes put such cgroups unless they are told otherwise."""
        found = [place for claim in self.claims() for place in _places(*claim.split("/"))]
        return tuple(dict.fromkeys(found))

    def plain(self) -> dict[str, list[str]]:
        """As in the file."""
        return {
            name: list(value)
            for name in type(self).model_fields
            if (value := getattr(self, name)) is not None
        }


_PLAIN = ("docker", "podman", "containerd", "pod", "lxc", "unit")


def _places(domain: str, name: str, inner: str | None = None) -> tuple[str, ...]:
    """Of one claim."""
    number = name if name.isdigit() else "*"
    if domain == "user":
        return (f"user.slice/user-{number}.slice" + ("" if inner is None else f"/**/{inner}"),)
    if domain == "slurm" and inner is None:
        return (f"slurm/uid_{number}",)
    if domain == "slurm":
        return f"slurm/uid_{number}/job_{inner}", f"system.slice/slurmstepd.scope/job_{inner}"
    return {
        "docker": ("system.slice/docker-*.scope", "docker/*"),
        "podman": ("machine.slice/libpod-*.scope",),
        "containerd": ("system.slice/nerdctl-*.scope", "default/*"),
        # the latter two: with kind's cgroupRoot
        "pod": (
            "kubepods.slice/*",
            "kubepods/*",
            "kubelet.slice/kubelet-kubepods.slice/*",
            "kubelet/kubepods/*",
        ),
        "lxc": (f"lxc.payload.{name}", f"lxc.payload/{name}", f"lxc/{name}"),
        "unit": (f"system.slice/{name}",),
    }[domain]


def in_words(claim: str) -> str:
    """A claim as the file has it, for an error."""
    domain, _, rest = claim.partition("/")
    if domain in _PLAIN:
        return f"{domain}: {rest}"
    first, _, inner = rest.partition("/")
    user, below = ("user", "unit") if domain == "user" else ("slurm_user", "slurm_job")
    return f"{user}: {first}" + (f", {below}: {inner}" if inner else "")


class LayerClaims(NamedTuple):
    """The paths of names of one layer of a cgroup."""

    paths: tuple[str, ...] = ()
    """The name that a person gave comes first."""
    is_whole: bool = True
    """False: it has a name that is not known, or not yet."""


def claims_of(layer: Layer, names: Names) -> LayerClaims:
    """What a layer may be matched by; nothing where who lives in another may have made it up."""
    if not layer.is_outer or layer.is_helper:
        return LayerClaims()
    if layer.pod_uid is not None and layer.kind is not Kind.PODMAN:
        found = name_of(layer, names)
        return LayerClaims((), False) if found is None else LayerClaims((f"pod/{found[1]}",))
    if layer.kind is Kind.SLURM:
        return _of_job(layer, names)
    if layer.kind in (Kind.UNIT, Kind.MACHINE) and layer.user_id is None:
        return LayerClaims((f"unit/{layer.unit}",))
    if layer.kind in (Kind.UNIT, Kind.USER):
        return _of_user("user", layer.user_id, "" if layer.kind is Kind.USER else f"/{layer.unit}", names)
    if layer.kind is Kind.LXC:
        return LayerClaims((f"lxc/{layer.name}",))
    return _of_container(layer, names)


def _of_job(layer: Layer, names: Names) -> LayerClaims:
    if layer.step is not None:
        return LayerClaims()  # all of the job is held
    job = "" if layer.job is None else f"/{layer.job}"
    if layer.user_id is None:
        return LayerClaims((f"slurm/{_NOT_KNOWN}{job}",))
    return _of_user("slurm", layer.user_id, job, names)


def _of_user(domain: str, user_id: int | None, below: str, names: Names) -> LayerClaims:
    name = names.of(Book.USERS, str(user_id))
    by_number = f"{domain}/{user_id}{below}"
    return (
        LayerClaims((by_number,), False)
        if name is None
        else LayerClaims((f"{domain}/{name}{below}", by_number))
    )


_DOMAINS = {Book.DOCKER: "docker", Book.PODMAN: "podman", Book.NERDCTL: "containerd"}


def _of_container(layer: Layer, names: Names) -> LayerClaims:
    """By name and by id. A container of a runtime that the path does not name is that of whoever knows its name."""
    found = name_of(layer, names)
    if found is not None:
        domain = _DOMAINS[found[0]]
        return LayerClaims((f"{domain}/{found[1]}", f"{domain}/{layer.container_id}"))
    if layer.kind in (Kind.CRIO, Kind.CONTAINER):
        return LayerClaims((), layer.kind is Kind.CRIO)
    return LayerClaims((f"{layer.kind.value}/{layer.container_id}",), False)
