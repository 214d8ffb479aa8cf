"""Makes a release of everything here: ``python .ci/release.py FOLDER`` builds, checks and tags; ``--dry-run`` only looks.

1. The tree is looked at: one version everywhere, ranges that hold it, a section of it in each changelog, no deprecated name that it
   should be without, nothing that is not committed, no such tag. All faults are told at once.
2. The wheels are built into FOLDER, each after what it needs (``wheels.py``).
3. They are installed into an empty environment, with what pip finds for them; the plugins are checked there, and a model trains.
4. The release notes are written to FOLDER/NOTES.md from the changelogs, and the commit is tagged with them.

Nothing leaves the machine: the last lines say how to upload and push. CI runs the first step, and prints the notes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from itertools import chain
from pathlib import Path

import wheels
from packaging.requirements import Requirement
from packaging.version import Version

from mt_core import __version__
from mt_core.deprecation import DEPRECATED

UNRELEASED = " (unreleased)"


def faults(version: str) -> list[str]:
    """What in the sources speaks against a release of this version."""
    found = [] if __version__ == version else [f"mt_core.__version__ is {__version__}, and the release {version}"]
    ours = wheels.distributions()
    for name, folder in ours.items():
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        if project["version"] != version:
            found.append(f"{name} has version {project['version']}, and the release {version}: mend its pyproject.toml")
        extras = project.get("optional-dependencies", {}).values()
        for need in map(Requirement, chain(project["dependencies"], *extras)):
            if need.name in ours and not need.specifier.contains(version, prereleases=True):
                found.append(f"{name} wants {need}, which has no {version}: widen the range in its pyproject.toml")
        if not section(folder, version):
            found.append(f"{name} says nothing under '## {version}' in its CHANGELOG.md: write what a user gets")
    late = [name for name, old in DEPRECATED.items() if is_reached(old.gone_in, version)]
    return found + [f"mt_core.{name} was to go by now: move it to REMOVED in mt_core.deprecation" for name in late]


def is_reached(gone_in: str, version: str) -> bool:
    """Whether this release, or one before its end (0.2.0rc1 of 0.2), is to be without what goes in ``gone_in``."""
    return Version(version).release >= Version(gone_in).release


def section(folder: Path, version: str) -> str:
    """The lines of one version in the changelog of a distribution; empty where there are none."""
    text = (folder / "CHANGELOG.md").read_text("utf-8")
    pattern = rf"^## {re.escape(version)}(?:{re.escape(UNRELEASED)})?\n(.*?)(?=^## |\Z)"
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def notes(version: str) -> str:
    """What is new, by distribution, in the order in which they are built."""
    ours = wheels.distributions()
    parts = [f"## {name}\n\n{section(ours[name], version)}" for name in wheels.in_order()]
    return "\n\n".join([f"# mt {version}", *parts]) + "\n"


def state_faults(version: str) -> list[str]:
    """What in the repository speaks against a tag now."""
    found = ["there are changes that are not committed"] if _git("status", "--porcelain") else []
    if _git("tag", "--list", f"v{version}"):
        found.append(f"the tag v{version} is there already: a version is released once")
    for name, folder in wheels.distributions().items():
        if f"## {version}{UNRELEASED}" in (folder / "CHANGELOG.md").read_text("utf-8"):
            found.append(f"the changelog of {name} says that {version} is unreleased")
    return found


def check(folder: Path, made: list[Path]) -> None:
    """Install the wheels into an empty environment, as a user does; check what they offer, and train two steps."""
    venv.create(folder / "environment", with_pip=True, clear=True)
    programs = folder / "environment/bin"
    _run(programs / "pip", "install", "-q", "--disable-pip-version-check", *made)
    _run(programs / "pip", "check")
    _run(programs / "mt-plugins", "check", "--strict")
    few = ["--model.n-layers", "1", "--train.steps", "2", "--train.micro-batch-size", "2"]
    _run(programs / "mt-train", "--model", "llama", *few, "--output", folder / "run")


def main(words: list[str] | None = None) -> int:
    """Return the exit code: 1 where something speaks against the release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where wheels and notes go; must not exist")
    parser.add_argument("--dry-run", action="store_true", help="look at the sources, print the order and the notes")
    given = parser.parse_args(words)
    if (given.folder is None) != given.dry_run:
        parser.error("either FOLDER, to make a release, or --dry-run, to look")
    version = __version__
    found = faults(version) + ([] if given.dry_run else state_faults(version))
    if found:
        print(f"{version} cannot be released:", *found, sep="\n- ", file=sys.stderr)
        return 1
    if given.dry_run:
        print(f"{version} would be built in this order:", *wheels.in_order(), sep="\n- ")
        print(f"and tagged v{version} with:\n\n{notes(version)}")
        return 0
    release(given.folder.absolute(), version)
    return 0


def release(folder: Path, version: str) -> None:
    """Build, check, write the notes and tag; whatever fails ends it before the tag."""
    folder.mkdir(parents=True)
    made = wheels.build(folder / "wheels", *wheels.distributions())
    check(folder, made)
    page = folder / "NOTES.md"
    page.write_text(notes(version), encoding="utf-8")
    _git("tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--file", str(page))
    print(f"{len(made)} wheels of {version} are in {folder / 'wheels'}, and v{version} is tagged. Now:")
    print(f"  twine upload {folder / 'wheels'}/*.whl\n  git push origin v{version}")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=wheels.ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _run(*words: str | Path) -> None:
    print("$", *words, flush=True)
    subprocess.run(list(map(str, words)), check=True, timeout=1800)


if __name__ == "__main__":
    sys.exit(main())
