# SPDX-License-Identifier: Apache-2.0
"""Tenants by names: the table of the docs, recorded paths, what two of them share, and what somebody made up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from fairsched.cgroup.identity import layers_of
from fairsched.cgroup.names import Book, Names
from fairsched.config import CgroupOwners, Config, from_bytes, list_settings, render
from fairsched.config.match import Match
from fairsched.config.reference import reference
from fairsched.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
ID = "3f" * 32
OTHER = "ab" * 32
UID = "0a1b2c3d-1111-2222-3333-444455556666"
LOW = UID.replace("-", "_")
TABLE = [
    [cell.strip(" `") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in reference().partition("<!-- match -->")[2].partition("<!-- match: end -->")[0].splitlines()
    if line.startswith("| ") and "`match:" in line
]


class Host:
    """A host whose containers have names, and a clock that is turned by hand."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s = root, 0.0
        self.names = Names(str(root), lambda: self.now_s)

    def write(self, path: str, text: str) -> None:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text)

    def docker(self, name: str, container_id: str = ID) -> None:
        self.write(
            f"var/lib/docker/containers/{container_id}/config.v2.json", json.dumps({"Name": f"/{name}"})
        )

    def pod(self, name: str) -> None:
        (self.root / f"var/log/pods/{name.replace('/', '_')}_{UID}").mkdir(parents=True)

    def owners(self, text: str) -> CgroupOwners:
        return CgroupOwners(config(text), self.names)

    def owner(self, text: str, path: str) -> tuple[str, str] | None:
        found = self.owners(text).owner(path)
        return None if found is None else (found.tenant, found.cgroup)


def config(tenants: str) -> Config:
    return from_bytes(f"tenants: {{{tenants}}}".encode(), "f.yaml")


def concrete(path: str) -> str:
    uid = UID if "/kubepods/" in path else LOW
    return re.sub(r"\bpodUID\b", f"pod{uid}", path.replace("-podUID", f"-pod{uid}")).replace("ID", ID)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def named(host: Host) -> Host:
    """With every name of the table."""
    host.pod("ml/llama-0")
    host.write("etc/passwd", "alice:x:1000:1000::/:\n")
    return host


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}: {row[2]}")
def test_each_line_of_the_docs_matches_the_cgroup_beside_it(named: Host, row: list[str]) -> None:
    made_by, path, line = row
    if "nerdctl" in made_by:
        named.write("var/lib/nerdctl/1935db59/names/default/chat", ID)
    elif "podman" in made_by:
        listed = json.dumps([{"id": ID, "names": ["chat"]}])
        named.write("var/lib/containers/storage/overlay-containers/containers.json", listed)
    else:
        named.docker("chat")
    path = concrete(path)
    owner = named.owner(f"t: {{{line}}}, other: {{weight: 1}}", path)
    assert owner is not None
    assert owner[0] == "t"
    assert path == owner[1] or path.startswith(owner[1] + "/")


def test_the_docs_have_a_line_for_every_key() -> None:
    used = {key for row in TABLE for key in yaml.safe_load(row[2])["match"]}
    assert used == set(Match.model_fields)
    assert len(TABLE) > 20


def test_the_first_example_of_the_docs_is_a_configuration_that_works(host: Host) -> None:
    """A pattern of paths for the name of a pod, as it once stood there, can never match: the path has a uid."""
    text = reference().partition("```yaml\n")[2].partition("```")[0]
    host.pod("ml/batch-7")
    owner = CgroupOwners(from_bytes(text.encode(), "f"), host.names).owner(
        f"/kubepods.slice/kubepods-pod{LOW}.slice/cri-containerd-{ID}.scope"
    )
    assert owner is not None
    assert (owner.tenant, owner.cgroup) == ("batch", f"/kubepods.slice/kubepods-pod{LOW}.slice")


@pytest.mark.parametrize(
    ("line", "path", "cgroup"),
    [
        ("docker: chat", f"/docker/{ID}/worker", f"/docker/{ID}"),
        ("docker: chat", f"/user.slice/{ID}", f"/user.slice/{ID}"),
        (f"docker: '{ID[:12]}*'", f"/docker/{ID}", f"/docker/{ID}"),
        ("slurm_job: 7", "/slurm/uid_1000/job_7/step_0", "/slurm/uid_1000/job_7"),
        ("slurm_user: alice", "/slurm/uid_1000/job_7/step_0", "/slurm/uid_1000"),
        ("slurm_user: alice, slurm_job: 7", "/slurm/uid_1000/job_7/step_0", "/slurm/uid_1000/job_7"),
        ("slurm_user: '*'", "/slurm_node1/uid_1000/job_7", "/slurm_node1/uid_1000"),
        ("user: alice", "/user.slice/user-1000.slice/session-1.scope", "/user.slice/user-1000.slice"),
        ("pod: 'ml/*'", f"/kubepods/pod{UID}/{ID}/x/y", f"/kubepods/pod{UID}"),
    ],
)
def test_the_whole_of_what_is_matched_is_held(named: Host, line: str, path: str, cgroup: str) -> None:
    named.docker("chat")
    assert named.owner(f"t: {{match: {{{line}}}}}", path) == ("t", cgroup)
    assert named.owner(f"t: {{match: {{{line}}}}}", cgroup) == ("t", cgroup)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("docker: web", f"/docker/{ID}"),
        ("docker: cha", f"/docker/{ID}"),
        ("docker: '*'", f"/machine.slice/libpod-{ID}.scope"),
        ("podman: '*'", f"/machine.slice/libpod-conmon-{ID}.scope"),
        ("lxc: '*'", "/lxc.monitor.web"),
        ("pod: 'm/*'", f"/kubepods/pod{UID}"),
        ("docker: '*'", f"/kubepods/pod{UID}/docker-{ID}.scope"),
        ("unit: '*'", f"/system.slice/docker-{ID}.scope"),
        ("unit: '*'", "/init.scope"),
        ("unit: '*'", "/system.slice/slurmstepd.scope/job_7"),
        ("unit: '*'", "/user.slice/user-1000.slice/user@1000.service/app.slice/a.service"),
        ("slurm_user: '*', slurm_job: 8", "/slurm/uid_1000/job_7"),
        ("slurm_user: alice", "/system.slice/slurmstepd.scope/job_7"),
        ("user: alice, unit: b.service", "/user.slice/user-1000.slice/user@1000.service/app.slice/a.service"),
        ("user: alice, unit: '*'", "/user.slice/user-1000.slice"),
        ("user: bob", "/user.slice/user-1000.slice"),
        # what somebody made below its own
        ("docker: chat", f"/docker/{OTHER}/docker/{ID}"),
        ("docker: chat", f"/system.slice/ci.service/docker-{ID}.scope"),
        ("docker: chat", f"/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope"),
        ("pod: 'ml/*'", f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}"),
        ("pod: 'ml/*'", f"/docker/{OTHER}/kubepods/pod{UID}"),
        ("slurm_job: 7", "/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_7"),
        ("unit: a.service", "/lxc.payload.web/system.slice/a.service"),
        ("user: alice", "/lxc.payload.web/user.slice/user-1000.slice"),
    ],
)
def test_what_only_looks_like_it_is_not_matched(named: Host, line: str, path: str) -> None:
    named.docker("chat")
    assert named.owner(f"t: {{match: {{{line}}}}}", path) is None


def test_recorded_paths_are_claimed_by_nobody_who_does_not_name_them(host: Host) -> None:
    recorded = yaml.safe_load((ROOT / "tests/unit/cgroup/recorded.yaml").read_text())
    keys = [name for name in Match.model_fields if not name.startswith("slurm")] + ["slurm_job", "slurm_user"]
    globs = {"pod": "no/no", "unit": "no.service"}
    text = ", ".join(f"t{n}: {{match: {{{key}: {globs.get(key, 'no')}}}}}" for n, key in enumerate(keys[:-1]))
    owners = host.owners(text)
    assert [one["path"] for one in recorded if owners.owner(one["path"]) is not None] == []


def test_a_container_is_nobodys_until_its_name_is_there(host: Host) -> None:
    owners = host.owners("t: {match: {docker: chat}}")
    version = owners.version
    assert owners.owner(f"/docker/{ID}") is None
    host.docker("chat")
    assert owners.owner(f"/docker/{ID}") is None
    host.now_s += 10
    host.names.poll()
    assert owners.version != version
    owner = owners.owner(f"/docker/{ID}")
    assert owner is not None
    assert owner.tenant == "t"


def test_an_answer_that_no_name_can_change_is_kept(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = host.owners("t: {match: {unit: a.service}}")
    for _ in range(2):
        assert owners.owner("/system.slice/a.service") is not None
        assert owners.owner("/system.slice/b.service") is None
    assert not owners._waiting
    asked: list[str] = []
    monkeypatch.setattr(owners, "_find", lambda path, _asked: asked.append(path))
    host.names.version += 1
    owners.owner("/system.slice/a.service")
    assert asked == []


def test_without_names_in_the_configuration_none_is_asked_for(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = host.owners("t: {weight: 1}")
    monkeypatch.setattr(host.names, "of", None)
    assert owners.owner(f"/docker/{ID}") is None
    assert owners.version == 0


@pytest.mark.parametrize(
    ("tenants", "path", "owner"),
    [
        # the outermost cgroup decides, whoever has it by path or by name
        ("a: {cgroup: 'x.slice/**'}, b: {match: {docker: chat}}", f"/x.slice/docker-{ID}.scope", "a"),
        ("a: {cgroup: 'x.slice/y.service/z'}, b: {match: {unit: y.service}}", "/x.slice/y.service/z", "b"),
        ("a: {match: {unit: containerd.service}}, b: {match: {docker: chat}}",
         f"/system.slice/containerd.service/docker-{ID}.scope", "a"),
        # of the same cgroup the name comes before the id
        (f"a: {{match: {{docker: '{ID[:6]}*'}}}}, b: {{match: {{docker: chat}}}}", f"/docker/{ID}", "b"),
        ("a: {match: {user: 1000}}, b: {match: {user: alice}}", "/user.slice/user-1000.slice", "b"),
        ("b: {match: {user: alice}}, a: {match: {user: 1000}}", "/user.slice/user-1000.slice", "b"),
        # both ways for one tenant
        ("a: {cgroup: y, match: {docker: chat}}", f"/docker/{ID}", "a"),
        ("a: {cgroup: y, match: {docker: chat}}", "/y/z", "a"),
    ],
)  # fmt: skip
def test_of_several_claims_one_decides_whatever_the_order(
    named: Host, tenants: str, path: str, owner: str
) -> None:
    named.docker("chat")
    found = named.owner(tenants, path)
    assert found is not None
    assert found[0] == owner


def test_no_tenants_cgroup_is_inside_of_anothers(named: Host) -> None:
    named.docker("chat")
    owners = named.owners(
        "a: {match: {docker: chat}}, b: {match: {unit: '*.service'}}, c: {cgroup: 'srv.slice/*.service/*'}, "
        "d: {match: {pod: 'ml/*'}}, e: {match: {user: alice}}"
    )
    recorded = yaml.safe_load((ROOT / "tests/unit/cgroup/recorded.yaml").read_text())
    paths = [one["path"] for one in recorded]
    paths += [f"/system.slice/y.service/x/docker-{ID}.scope", f"/kubepods/pod{UID}/{ID}/a.service/x"]
    for path in paths:
        parts = path.split("/")
        on_the_way = [owners.owner("/".join(parts[:length])) for length in range(2, len(parts) + 1)]
        assert len({one.cgroup for one in on_the_way if one is not None}) <= 1


def test_a_tenant_by_name_has_no_other_cgroup(host: Host) -> None:
    found = config("t: {match: {docker: chat}}")
    assert found.cgroup_patterns("t") == ()
    assert found.cgroup_places("t") == ("system.slice/docker-*.scope", "docker/*")
    assert host.owner("t: {match: {docker: chat}}", "/gpu.slice/t") is None


@pytest.mark.parametrize(
    ("tenants", "key", "words"),
    [
        ("a: {match: {docker: chat}}, b: {match: {docker: 'c*'}}", "tenants.b.match", "docker: chat"),
        ("a: {match: {pod: 'ml/a*'}}, b: {match: {pod: '*/*b'}}", "tenants.b.match", "pod: ml/ab"),
        (
            "a: {match: {user: al}}, b: {match: {user: '*', unit: x.service}}",
            "tenants.b.match",
            "unit: x.service",
        ),
        ("a: {match: {slurm_job: 7}}, b: {match: {slurm_user: 1}}", "tenants.b.match", "slurm_job: 7"),
        (
            "a: {match: {unit: a.service}}, b: {cgroup: system.slice/a.service}",
            "tenants.a.match",
            "a.service",
        ),
        ("a: {cgroup: 'system.slice/**'}, b: {match: {docker: x}}", "tenants.b.match", "docker-"),
        ("a: {cgroup: 'kubepods.slice/**'}, b: {match: {pod: 'x/*'}}", "tenants.b.match", "kubepods.slice"),
        ("a: {cgroup: user.slice}, b: {match: {user: 7}}", "tenants.b.match", "user-7.slice"),
        ("a: {cgroup: machine.slice}, b: {match: {podman: x}}", "tenants.b.match", "libpod-"),
        ("a: {cgroup: lxc.payload.x}, b: {match: {lxc: 'x*'}}", "tenants.b.match", "lxc.payload.x"),
        ("a: {cgroup: 'slurm/uid_7'}, b: {match: {slurm_job: 1}}", "tenants.b.match", "slurm/uid_7/job_1"),
        ("a: {cgroup: docker, match: {docker: a}}, b: {match: {docker: b}}", "tenants.b.match", "docker/"),
        ("a: {cgroup: default}, b: {match: {containerd: x}}", "tenants.b.match", "default/"),
    ],
)
def test_two_tenants_never_match_the_same(tenants: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tenants)
    assert caught.value.key is not None
    assert caught.value.key.startswith(key) or caught.value.key.startswith("tenants.b.cgroup")
    assert words in str(caught.value)
    assert "a cgroup has one owner" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    "tenants",
    [
        "a: {match: {docker: chat}}, b: {match: {podman: chat}}, c: {}",
        "a: {match: {docker: 'a*'}}, b: {match: {docker: 'b*'}}",
        "a: {match: {user: a, unit: x.service}}, b: {match: {user: a, unit: y.service}}",
        "a: {match: {unit: a.service}}, b: {match: {user: a, unit: a.service}}",
        "a: {cgroup: system.slice/nvidia-dcgm.service}, b: {match: {docker: '*'}}",
        "a: {match: {unit: 'docker*.service'}}, b: {match: {docker: '*'}}",
        "a: {match: {docker: [x, x]}, cgroup: 'docker/*'}",
    ],
)
def test_what_cannot_meet_may_stand_beside_each_other(tenants: str) -> None:
    assert len(config(tenants).tenants) >= 1


@pytest.mark.parametrize(
    ("match", "words"),
    [
        ("{}", "names nothing"),
        ("{docker: []}", "at least one name"),
        ("{docker: ''}", "empty name"),
        ("{docker: a/b}", "without '/'"),
        ("{docker: '**'}", "without '/'"),
        ("{docker: 'a[0]'}", "only * ?"),
        ('{docker: "a\\nb"}', "control characters"),
        ("{docker: true}", "must be a word"),
        ("{docker: 1.5}", "must be a word"),
        ("{docker: {a: b}}", "must be a word"),
        ("{pod: chat}", "write NAMESPACE/NAME, such as '*/chat'"),
        ("{pod: a/b/c}", "without '/'"),
        ("{pod: /b}", "empty name"),
        ("{unit: chat}", "chat.service"),
        ("{unit: team.slice}", "cgroup: team.slice"),
        ("{docker: a, podman: b}", "cannot be one cgroup"),
        ("{user: a, docker: b}", "cannot be one cgroup"),
        ("{dokcer: a}", "unknown key"),
        ("3", "mapping"),
        (f"{{docker: [{', '.join(f'n{n}' for n in range(65))}]}}", "64"),
    ],
)
def test_a_bad_match_is_an_error_with_key_and_remedy(match: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(f"chat: {{match: {match}}}")
    assert words in f"{caught.value} {caught.value.remedy}"
    assert (caught.value.key or "").startswith("tenants.chat.match")
    assert caught.value.remedy


def test_a_wrong_key_gets_the_right_one_as_remedy() -> None:
    with pytest.raises(ConfigError) as caught:
        config("chat: {match: {dokcer: a}}")
    assert caught.value.remedy == "did you mean 'docker'?"


def test_a_match_in_a_child_is_an_unknown_key() -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        config("chat: {children: {a: {match: {docker: x}}}}")


@pytest.mark.parametrize(
    "match",
    [
        "{docker: chat}",
        "{pod: [ml/a, 'x/b-*']}",
        "{slurm_user: 1000, slurm_job: '7*'}",
        "{unit: 'a@*.service'}",
    ],
)
def test_what_is_shown_can_be_loaded_again(match: str) -> None:
    made = config(f"chat: {{match: {match}}}, web: {{}}")
    shown = render(made)
    again = from_bytes(shown.encode(), "f")
    assert again.tenants["chat"].match == made.tenants["chat"].match
    assert again.cgroup_patterns("chat") == ()
    assert [line.partition("  # ")[0] for line in render(again).splitlines()] == [
        line.partition("  # ")[0] for line in shown.splitlines()
    ]
    values = {setting.name: setting.value for setting in list_settings(made)}
    assert values["tenants.chat.cgroup"] is None
    assert values["tenants.web.match"] is None


def test_a_thousand_tenants_by_name_are_checked_and_found(host: Host) -> None:
    owners = host.owners(", ".join(f"t{n}: {{match: {{docker: c{n}}}}}" for n in range(1000)))
    host.docker("c777")
    owner = owners.owner(f"/docker/{ID}")
    assert owner is not None
    assert owner.tenant == "t777"
    assert not owners._named.globs


def test_one_path_among_many_names_is_found() -> None:
    many = ", ".join(f"t{n}: {{match: {{docker: c{n}}}}}" for n in range(50))
    with pytest.raises(ConfigError, match="both may claim docker/"):
        config(f"{many}, a: {{cgroup: docker}}")


def test_names_are_asked_for_as_the_layer_says(host: Host) -> None:
    (layer,) = layers_of(f"/docker/{ID}")
    host.docker("chat")
    assert host.names.of(Book.DOCKER, layer.container_id or "") == "chat"
