# SPDX-License-Identifier: Apache-2.0
"""Builds what tests/k8s runs, a Kubernetes with all its parts, from Go modules: ``build.py [PART ...]``.

Problem. The tests want real programs of one known version, on a machine that reaches the Go module proxy and no site
that offers binaries; and a rebuild of what is there already would cost a quarter of an hour.

Approach. tests/k8s/parts.yaml pins each part. A part gets a module of its own that requires the part's module and
nothing else, so that go.mod of the part decides every version below it. Go checks what it fetches against the sum
database, and the part's own sum is compared with the pinned one before anything is compiled. A part is built into a
directory with a name made of its entry and the Go that built it, and a link of its name points there: what is done is
not done again, what was interrupted goes on with Go's cache, and a changed pin builds anew.

Fields of an entry. module, version, sum: as in go.sum. programs: name -> package below the module. tags, cgo, set
(variables of Go to set to a text). staging: version of the libraries that the module's own go.mod has as directories.
godebug: of which Go the defaults are.

Where. FAIRSCHED_K8S_CACHE, else /var/cache/fairsched-k8s: ``bin/`` has the programs, ``mod/`` Go's modules (tests may
want their files, such as definitions of resources), ``gocache/`` what was compiled: may be removed.

Exit: 0 all is there, 1 something failed, 2 usage, 3 no Go, with what to do.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PARTS = ROOT / "tests/k8s/parts.yaml"
CACHE = Path(os.environ.get("FAIRSCHED_K8S_CACHE", "/var/cache/fairsched-k8s"))
JOBS = os.environ.get("FAIRSCHED_K8S_JOBS", "2")
STAGED = re.compile(r"^\s*(?:replace\s+)?(\S+) => \./staging/", re.MULTILINE)
TAIL = 25


class BuildError(Exception):
    """A part cannot be had; the text says which, why and what to do."""


@dataclass(frozen=True)
class Part:
    """An entry of parts.yaml."""

    name: str
    module: str
    version: str
    sum: str
    programs: dict[str, str]
    tags: str = ""
    cgo: bool = False
    staging: str = ""
    godebug: str = ""
    set: dict[str, str] = field(default_factory=dict)

    def digest(self, go: str) -> str:
        """Changes with whatever changes the programs."""
        return hashlib.sha256(f"{self}{go}".encode()).hexdigest()[:12]

    def package(self, program: str) -> str:
        below = self.programs[program]
        return self.module if below == "." else f"{self.module}/{below}"


def parts() -> list[Part]:
    """Those of parts.yaml, in its order."""
    document: dict[str, Any] = yaml.safe_load(PARTS.read_text())
    return [Part(name=name, **entry) for name, entry in document.items()]


def say(text: str) -> None:
    print(f"k8s: {text}", file=sys.stderr, flush=True)


def environment(cgo: bool = False) -> dict[str, str]:
    """Of Go: its proxy and sum database are the caller's, its caches ours."""
    return {
        **os.environ,
        "GOMODCACHE": str(CACHE / "mod"),
        "GOCACHE": str(CACHE / "gocache"),
        "GOFLAGS": "-modcacherw -mod=mod -trimpath -buildvcs=false",
        "GOWORK": "off",
        "CGO_ENABLED": str(int(cgo)),
    }


def run(command: list[str], directory: Path, cgo: bool = False) -> str:
    """What it printed on its standard output. Raises BuildError with the end of what it said."""
    done = subprocess.run(command, cwd=directory, env=environment(cgo), capture_output=True, text=True)
    if done.returncode:
        said = "\n".join((done.stderr + done.stdout).splitlines()[-TAIL:])
        raise BuildError(f"{' '.join(command[:3])} failed in {directory}:\n{said}")
    return done.stdout


def fetch(part: Part, work: Path) -> Path:
    """The module's directory, once its sum was found to be the pinned one."""
    name = f"{part.module}@{part.version}"
    found = json.loads(run(["go", "mod", "download", "-json", name], work))
    if found["Sum"] != part.sum:
        raise BuildError(
            f"{name} has the sum {found['Sum']}, tests/k8s/parts.yaml says {part.sum}: find out why before"
            " you change either"
        )
    return Path(found["Dir"])


def own_module(part: Part, source: Path) -> str:
    """go.mod of the module in which the part is built."""
    theirs = (source / "go.mod").read_text()
    version = re.search(r"^go (\S+)", theirs, re.MULTILINE)
    lines = [f"module fairsched.test/{part.name}", f"go {version[1] if version else '1.24.0'}"]
    lines += [f"godebug default={part.godebug}"] if part.godebug else []
    lines.append(f"require {part.module} {part.version}")
    if part.staging:
        lines += [f"replace {name} => {name} {part.staging}" for name in STAGED.findall(theirs)]
    return "\n".join(lines) + "\n"


def build(part: Part, go: str) -> bool:
    """Builds a part unless it is there; whether there was something to do."""
    target = CACHE / "built" / f"{part.name}-{part.version}-{part.digest(go)}"
    if not target.is_dir():
        started = time.monotonic()
        say(f"{part.name} {part.version}: building {', '.join(part.programs)} ...")
        work = CACHE / "work" / part.name
        shutil.rmtree(work, ignore_errors=True)
        (work / "out").mkdir(parents=True)
        source = fetch(part, work)
        (work / "go.mod").write_text(own_module(part, source))
        shutil.copy(source / "go.sum", work / "go.sum")
        flags = ["-s -w", *(f"-X {name}={value}" for name, value in part.set.items())]
        for program in part.programs:
            out = ["-o", str(work / "out" / program), part.package(program)]
            command = ["go", "build", "-p", JOBS, "-tags", part.tags, "-ldflags", " ".join(flags)]
            run([*command, *out], work, part.cgo)
        size = sum(one.stat().st_size for one in (work / "out").iterdir())
        target.parent.mkdir(exist_ok=True)
        (work / "out").rename(target)
        shutil.rmtree(work)
        say(f"{part.name} {part.version}: {size / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")
        link(part, target)
        return True
    link(part, target)
    return False


def link(part: Part, target: Path) -> None:
    """Has bin/ point at the programs of this build."""
    (CACHE / "bin").mkdir(exist_ok=True)
    for program in part.programs:
        scratch = CACHE / "bin" / f".{program}.new"
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(f"../built/{target.name}/{program}")
        scratch.replace(CACHE / "bin" / program)


def main(names: list[str]) -> int:
    known = {part.name: part for part in parts()}
    if unknown := [name for name in names if name not in known]:
        say(f"no such part: {', '.join(unknown)}. There are {', '.join(known)}")
        return 2
    if shutil.which("go") is None:
        say("no Go: install Go 1.26 or later (Debian's golang-go may be older), and try again")
        return 3
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two at once would build the same
        try:
            go = run(["go", "env", "GOVERSION"], CACHE).strip()
            made = [name for name in names or known if build(known[name], go)]
        except BuildError as error:
            say(str(error))
            say("what was done stays done: the next run goes on from there")
            return 1
    say(
        f"{len(made)} parts built, {len(names or known) - len(made)} were there; programs are in {CACHE / 'bin'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
