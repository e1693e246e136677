# SPDX-License-Identifier: Apache-2.0
"""Builds the node agent's image from this host's own files: ``build.py OUT.tar [--name NAME] [--base FILE]``.

Problem. An image is usually built with a daemon, a network and a registry; a test, and a cluster without the way out,
have none of them.

Approach. On Debian every file of a package is on record. Those of ``packages`` beside this file and of all that they
depend on, the Python packages that fairsched wants, and fairsched itself are put into two layers: what changes seldom,
and what changes with every commit. What comes out is an archive as ``docker save`` writes it, which ``ctr images
import`` takes. Nothing is executed of what is put into it, no time and no owner of this host gets into it: the same
files make the same archive.

Terms. ``--base``: where the first layer is kept, and taken from where it is there already; its name should say of what.

Exit: 0 built, 1 something is missing, 2 usage, 3 no Debian.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import io
import json
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STATUS = Path("/var/lib/dpkg/status")
INFO = Path("/var/lib/dpkg/info")
SITE = f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/dist-packages"
NAME = "fairsched.test/fairsched:0.1.0"
EXTRA = "k8s"
"""What speaks to the kubelet needs more than the daemon."""
UNWANTED = re.compile(
    r"usr/share/(doc|man|locale|lintian|bash-completion|info|bug|i18n|zoneinfo/(posix|right))/|usr/lib/llvm-[0-9]*/(share|build|include)/|usr/lib/systemd/"
    r"|.*\.(a|pyc)$|usr/lib/python3.*/(test|idlelib|ensurepip|distutils|lib2to3)/|etc/(init|cron)"
)
EMPTY = (
    "tmp",
    "run",
    "proc",
    "sys",
    "dev",
    "var/lib/fairsched",
    "var/log/pods",
    "run/fairsched",
    "etc/fairsched",
    "root",
)
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
ENVIRONMENT = ["PATH=/usr/local/bin:/usr/bin:/usr/sbin", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"]
PASSWD = "root:x:0:0:root:/root:/bin/sh\n"
GROUP = "root:x:0:\nfairsched:x:990:\n"


class BuildError(Exception):
    """Something that belongs into the image is not on this host; the text says what."""


# ---- Debian's ----


def wanted_packages() -> list[str]:
    lines = (HERE / "packages").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def installed() -> dict[str, dict[str, str]]:
    """Fields of each package that is installed, by its name and by the names that it provides."""
    found: dict[str, dict[str, str]] = {}
    for block in STATUS.read_text(errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*(?:\n .*)*)", block, re.MULTILINE))
        if "Package" in fields and fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = fields
            for name in _names(fields.get("Provides", "")):
                found.setdefault(name, fields)
    return found


def _names(relation: str) -> list[str]:
    """Of a field such as Provides; the versions are dpkg's business."""
    return [
        re.split(r"[ (:]", one.strip(), maxsplit=1)[0] for one in re.split(r"[,|]", relation) if one.strip()
    ]


def closure(names: Iterable[str]) -> list[dict[str, str]]:
    """These packages and what they depend on, each once. Raises BuildError."""
    known, left, taken = installed(), list(names), dict[str, dict[str, str]]()
    while left:
        name = left.pop()
        if name not in known:
            raise BuildError(f"the package {name} is not installed: apt-get install {name}")
        fields = known[name]
        if fields["Package"] in taken:
            continue
        taken[fields["Package"]] = fields
        for one in f"{fields.get('Depends', '')},{fields.get('Pre-Depends', '')}".split(","):
            choices = [choice for choice in _names(one) if choice in known]
            if choices:  # what is not installed is not needed here either
                left.append(choices[0])
    return [taken[name] for name in sorted(taken)]


def files_of(package: dict[str, str]) -> Iterator[str]:
    """Paths below the root, with the directories that links have taken the place of."""
    lists = [
        INFO / f"{package['Package']}.list",
        INFO / f"{package['Package']}:{package['Architecture']}.list",
    ]
    for path in next((one for one in lists if one.exists()), lists[0]).read_text().splitlines():
        whole = Path(path)
        if whole.is_symlink() or whole.is_file():
            yield str((whole.parent.resolve() / whole.name).relative_to("/"))


# ---- Python's ----


def python_files(name: str) -> Iterator[tuple[str, Path]]:
    """(path in the image, file) of what fairsched imports, itself not included. Raises BuildError."""
    left, seen = [one for extra in ("", EXTRA) for one in _requirements(name, extra)], set[str]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            distribution = importlib.metadata.distribution(one)
        except importlib.metadata.PackageNotFoundError:
            raise BuildError(f"the Python package {one} is not installed: scripts/setup run") from None
        left += _requirements(one)
        for file in distribution.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                yield f"{SITE}/{file}", Path(str(distribution.locate_file(file)))


def _requirements(name: str, extra: str = "") -> list[str]:
    """What it needs whatever the extras are, or for one of them."""
    lines = importlib.metadata.requires(name) or []
    marks = [(line, re.search(r"extra == ['\"]([^'\"]*)", line)) for line in lines]
    wanted = [line for line, mark in marks if (mark[1] if mark else "") == extra]
    return [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in wanted]


def own_files() -> Iterator[tuple[str, Path]]:
    """fairsched, with the rooms that are links, and its command."""
    for directory, _, names in os.walk(ROOT / "fairsched", followlinks=True):
        for name in names:
            path = Path(directory) / name
            if "__pycache__" not in path.parts:
                yield f"{SITE}/{path.relative_to(ROOT)}", path
    yield "usr/local/bin/fairsched", HERE / "fairsched"


# ---- the archive ----


class Layer:
    """A tar of files of this host, without its times and owners. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar = tarfile.TarFile(path, "w", format=tarfile.GNU_FORMAT)
        self._known: set[str] = set()

    def __enter__(self) -> Layer:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def add(self, name: str, file: Path) -> None:
        if name in self._known or UNWANTED.match(name):
            return
        entry = self._tar.gettarinfo(str(file), name)
        if entry is None or not (entry.isreg() or entry.issym() or entry.islnk()):
            return
        if entry.islnk():  # the other name may be left out
            entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", file.stat().st_size
        self._put(entry, file)

    def text(self, name: str, text: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(text.encode()), 0o644
        self._known.add(name)
        self._tar.addfile(entry, io.BytesIO(text.encode()))

    def directory(self, name: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        self._tar.addfile(entry)

    def link(self, name: str, target: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def _put(self, entry: tarfile.TarInfo, file: Path) -> None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = 0
        self._known.add(entry.name)
        if entry.isreg():
            with open(file, "rb") as content:
                self._tar.addfile(entry, content)
        else:
            self._tar.addfile(entry)


def write_base(path: Path) -> None:
    """Debian's part and Python's."""
    with Layer(path) as layer:
        for name in ("usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", *EMPTY):
            layer.directory(name)
        for name, target in LINKS.items():
            layer.link(name, target)
        layer.text("etc/passwd", PASSWD)
        layer.text("etc/group", GROUP)
        for package in closure(wanted_packages()):
            for name in files_of(package):
                layer.add(name, Path("/") / name)
        for name, file in sorted(python_files("fairsched")):
            layer.add(name, file)


def write_own(path: Path) -> None:
    with Layer(path) as layer:
        for name, file in sorted(own_files()):
            layer.add(name, file)


def base_key() -> str:
    """Changes with whatever changes the first layer."""
    told = [f"{one['Package']} {one['Version']}" for one in closure(wanted_packages())]
    python = [f"{name} {file.stat().st_size}" for name, file in sorted(python_files("fairsched"))]
    return hashlib.sha256("\n".join([*told, *python, Path(__file__).read_text()]).encode()).hexdigest()[:12]


def write_archive(path: Path, name: str, layers: list[Path]) -> None:
    """An image with these layers."""
    digests = []
    for layer in layers:
        with open(layer, "rb") as content:
            digests.append(hashlib.file_digest(content, "sha256").hexdigest())
    config: dict[str, Any] = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": {"Cmd": ["fairsched", "run"], "Env": ENVIRONMENT, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    body = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(body).hexdigest()}.json"
    places = [f"{digest}/layer.tar" for digest in digests]
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": places}]
    with tarfile.open(path, "w") as tar:
        for place, layer in zip(places, layers, strict=True):
            entry = tarfile.TarInfo(place)
            entry.size = layer.stat().st_size
            with open(layer, "rb") as content:
                tar.addfile(entry, content)
        for place, content in ((config_name, body), ("manifest.json", json.dumps(manifest).encode())):
            entry = tarfile.TarInfo(place)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def build(out: Path, name: str = NAME, base: Path | None = None) -> None:
    """Write the archive. Raises BuildError."""
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        first, second = base or Path(scratch) / "base.tar", Path(scratch) / "own.tar"
        if not first.exists():
            write_base(Path(scratch) / "new.tar")
            (Path(scratch) / "new.tar").rename(first)
        write_own(second)
        write_archive(Path(scratch) / "image.tar", name, [first, second])
        (Path(scratch) / "image.tar").rename(out)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="build.py", description="Build the node agent's image.")
    parser.add_argument("out", type=Path, help="the archive to write")
    parser.add_argument("--name", default=NAME, help="[default: %(default)s]")
    parser.add_argument("--base", type=Path, help="keep the first layer there, or take it from there")
    options = parser.parse_args(arguments)
    if not STATUS.exists():
        print(
            "image: no Debian, or a relative of it: build on one, or in a container of one", file=sys.stderr
        )
        return 3
    try:
        build(options.out.absolute(), options.name, options.base)
    except BuildError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {options.name}, {options.out.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
