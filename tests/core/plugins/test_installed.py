"""Installed distributions, read as folders, are those that ``importlib.metadata`` gives; otherwise it is asked."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mt_core.plugins import installed
from mt_core.plugins.metadata import Selection, find_plugins

GROUP = "mt_core.plugins"
HEAD = "Metadata-Version: 2.1\nName: {}\nVersion: 1.{}\nRequires-Dist: mt-core\n"

Files = Mapping[str, bytes]
Site = Mapping[str, Files]
"""Name of a folder → its files."""


@contextmanager
def only_path(*roots: Any) -> Iterator[None]:
    """``sys.path`` with these entries alone."""
    before = sys.path[:]
    sys.path[:] = roots
    try:
        yield
    finally:
        sys.path[:] = before


def lay_out(folder: Path, sites: list[Site]) -> list[str]:
    """Write the sites; a name that ends in ``.file`` is a file without that ending, in place of a folder."""
    for number, site in enumerate(sites):
        (folder / str(number)).mkdir()
        for name, files in site.items():
            if name.endswith(".file"):
                (folder / str(number) / name.removesuffix(".file")).write_bytes(b"x")
                continue
            (folder / str(number) / name).mkdir(exist_ok=True)
            for file, content in files.items():
                (folder / str(number) / name / file).write_bytes(content)
    return [str(folder / str(number)) for number in range(len(sites))]


def facts(ask: Callable[[], Any]) -> Any:
    """All that the core asks of entry points; the type of the error where there is one."""
    try:
        return [
            (
                point.name,
                point.value,
                point.dist.metadata["Name"],
                point.dist.metadata["Version"],
                point.dist.requires,
                point.dist.read_text("direct_url.json"),
                str(Path(point.dist.locate_file("")).resolve()),
            )
            for point in ask()
        ]
    except Exception as error:  # noqa: BLE001 - whatever is raised, it has to be the same
        return type(error)


def ours() -> Any:
    return facts(lambda: installed.entry_points(GROUP))


def theirs() -> Any:
    return facts(lambda: importlib.metadata.entry_points(group=GROUP))


LINES = st.sampled_from(
    [
        *(
            b"[mt_core.plugins]",
            b"[ mt_core.plugins ]",
            b"[console_scripts]",
            b"[[mt_core.plugins]]",
            b"[mt_core.plugins",
        ),
        *(
            b"one = acme.one",
            b"two=acme.two:Plugin.x",
            b" three  =  acme.three ",
            b"four = acme:a [extra]",
            b"five = a-b",
        ),
        *(
            b"",
            b"# comment",
            b"  # x = y",
            b"; x",
            b"no value",
            b"= nothing",
            b"x =",
            b"caf\xc3\xa9 = acme",
            b"bad = \xff",
        ),
        *(b"a = b = c", b"\x0cd = e\x1cf = g", b"\xc2\x85h = i", b"\xef\xbb\xbf[mt_core.plugins]"),
    ]
)
GOOD_POINTS = st.sampled_from(
    [b"[mt_core.plugins]\none = acme.one\n", b"# c\n\n[x]\na=b\n[mt_core.plugins]\ntwo = b:c\n"]
)
POINTS = GOOD_POINTS | st.lists(LINES, max_size=6).map(b"\n".join) | st.lists(LINES, max_size=6).map(b"\r\n".join)
METADATA = st.tuples(st.sampled_from(["acme", "Ac.Me", "other"]), st.integers(0, 9)).map(
    lambda each: HEAD.format(*each).encode()
) | st.sampled_from(
    [
        *(
            b"",
            b"\n",
            b"Name: late\nVersion: 1\nMetadata-Version: 2.1\n",
            b"Metadata-Version: 2.1\nName: acme\nVersion: 1",
        ),
        *(b"Metadata-Version: 2.1\nName: acme\nVersion: 1\n more\n", b"Metadata-Version: 2.1\nName: a b\nVersion: 1\n"),
        *(
            b"Metadata-Version: 2.1\r\nName: acme\r\nVersion: 1\r\n\r\nbody",
            b"Metadata-Version: 2.1\nName:acme\nVersion: 1\n",
        ),
        *(
            b"Metadata-Version: 2.1\nName: acme\nVersion: 1\n\nName: body\n",
            b"Metadata-Version: 2.1\nVersion: 1\nName: acme\n",
        ),
        *(
            b"Metadata-Version: 2.1\nName: acme\nVersion: 1\nx\xff\n",
            b"From me\nName: acme\nVersion: 1\n",
            b"no header\n",
        ),
        *(
            b"Metadata-Version: 2.1\nName: caf\xc3\xa9\nVersion: 1\n",
            b"\xef\xbb\xbfMetadata-Version: 2.1\nName: a\nVersion: 1\n",
        ),
        *(
            b"Metadata-Version: 2.1\nname: acme\nVersion: 1\nName: two\n",
            b"Metadata-Version: 2.1\nName: a\nName: b\nVersion: 1\n",
        ),
    ]
)
FILES = st.fixed_dictionaries(
    {},
    optional={
        "entry_points.txt": POINTS,
        "METADATA": METADATA,
        "PKG-INFO": METADATA,
        "direct_url.json": st.sampled_from([b'{"dir_info": {"editable": true}, "url": "file:///src"}', b"{"]),
    },
)
WHOLE = st.fixed_dictionaries({"entry_points.txt": GOOD_POINTS, "METADATA": METADATA})
NAMES = st.sampled_from(
    [
        *(
            "acme-1.0.dist-info",
            "Acme-2.0.dist-info",
            "ac.me-1.0.dist-info",
            "ac_me-1.0.dist-info",
            "ac-me-1.0.dist-info",
        ),
        *(
            "acme.dist-info",
            "other-1.0.dist-info",
            "~cme-1.0.dist-info",
            "acme-1.0.egg-info",
            "acme.egg-info",
            "acme.egg-link",
        ),
        *(
            "acme-1.0.DIST-INFO",
            "-1.0.dist-info",
            ".dist-info",
            "..dist-info",
            "_-1.dist-info",
            "dist-info",
            "egg-info",
        ),
        *("caf\u00e9-1.0.dist-info", "\u0130-1.dist-info", "acme", "acme-3.0.dist-info.file", "acme-2.0.egg-info.file"),
    ]
)
SITES = st.lists(st.dictionaries(NAMES, FILES | WHOLE, max_size=4), min_size=1, max_size=3)


@settings(max_examples=400, deadline=None)
@given(sites=SITES)
@example(sites=[{"acme-1.0.dist-info": {"entry_points.txt": b"[mt_core.plugins]\nlost"}}])
@example(
    sites=[{"..dist-info": {"entry_points.txt": b"[mt_core.plugins]\na = b", "METADATA": HEAD.format("b", 1).encode()}}]
)
def test_entry_points_of_any_folders_are_those_of_importlib_metadata(sites: list[Site]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        roots = lay_out(Path(folder), sites)
        for path in (roots, [*roots, *roots[:1]], [f"{folder}/none", *reversed(roots)]):
            with only_path(*path):
                assert ours() == theirs()


GOOD = b"[mt_core.plugins]\nacme = acme.plugin\n"
ODD_POINTS = (
    GOOD + b"[x]\nno value\n",
    GOOD + b"[x]\nbad = \xff\n",
    GOOD + b"two = acme:a [extra]\n",
    b"no group\n" + GOOD,
    GOOD.replace(b"\n", b"\r\n"),
    b"\xef\xbb\xbf" + GOOD,
    b"# c\n\n  # d = e\n" + GOOD,
)
ODD_HEADS = (
    b"",
    b"Metadata-Version: 2.1\nName: acme\nVersion: 1\n more\n",
    b"Metadata-Version: 2.1\nName: acme\nVersion: 1\n\nbody \xff\n",
    b"Metadata-Version: 2.1\nName: a b\nVersion: 1\n",
    b"Metadata-Version: 2.1\nVersion: 1\nName: acme\n",
    b"Metadata-Version: 2.1\r\nName: acme\r\nVersion: 1\r\n",
    b"Metadata-Version: 2.1\nName: acme\nVersion: 1",
    b"Name: caf\xc3\xa9\nVersion: 1\n",
)


@pytest.mark.parametrize("suffix", ["dist-info", "egg-info"])
def test_odd_files_of_a_plugin_are_read_or_refused_as_by_importlib_metadata(suffix: str, tmp_path: Path) -> None:
    head = HEAD.format("Acme", 0).encode()
    files = [{"entry_points.txt": points, "METADATA": head} for points in ODD_POINTS]
    files += [{"entry_points.txt": GOOD, name: each} for each in ODD_HEADS for name in ("METADATA", "PKG-INFO")]
    for number, each in enumerate(files):
        (tmp_path / f"of-{number}").mkdir()
        roots = lay_out(tmp_path / f"of-{number}", [{f"acme-1.0.{suffix}": each}])
        with only_path(*roots):
            assert ours() == theirs(), each


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with one plugin, as pip leaves it."""
    files = {
        "entry_points.txt": b"[mt_core.plugins]\nacme = acme.plugin\n",
        "METADATA": HEAD.format("Acme", 0).encode(),
    }
    return Path(lay_out(tmp_path, [{"acme-1.0.dist-info": files}])[0])


def refuse(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("importlib.metadata was asked")


def test_a_path_of_folders_is_read_without_asking(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)
    monkeypatch.setattr(sys, "version_info", (3, 13))
    with only_path(f"{site}/python311.zip", str(site)):
        assert [(point.name, point.value) for point in installed.entry_points(GROUP)] == [("acme", "acme.plugin")]
    monkeypatch.chdir(site)
    with only_path(""):
        assert [str(point.dist.metadata["Name"]) for point in installed.entry_points(GROUP) if point.dist] == ["Acme"]


class Finder:
    """Finds a distribution of its own, as ``importlib_metadata`` or an importer from elsewhere does."""

    @staticmethod
    def find_spec(*arguments: Any) -> None:
        return None

    @staticmethod
    def find_distributions(context: Any) -> Iterator[Any]:
        yield importlib.metadata.Distribution.at(str(Path(context.path[0]) / "hidden" / "beside-1.0.dist-info"))


@pytest.mark.parametrize("case", ["zip", "egg", "path", "finder", "python"])
def test_what_is_no_plain_folder_is_asked_of_importlib_metadata(
    case: str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "beside-1.0.dist-info"
    files = {"entry_points.txt": "[mt_core.plugins]\nb = c", "METADATA": HEAD.format("beside", 0)}
    roots: list[Any] = [str(site)]
    if case == "zip":
        with zipfile.ZipFile(site / "all.zip", "w") as archive:
            for file, text in files.items():
                archive.writestr(f"{name}/{file}", text)
        roots.append(str(site / "all.zip"))
    elif case == "finder":
        (site / "hidden" / name).mkdir(parents=True)
        for file, text in files.items():
            (site / "hidden" / name / file).write_text(text)
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    elif case == "egg":
        (site / "b-1.egg" / "EGG-INFO").mkdir(parents=True)
        (site / "b-1.egg" / "EGG-INFO" / "entry_points.txt").write_text(files["entry_points.txt"])
        (site / "b-1.egg" / "EGG-INFO" / "PKG-INFO").write_text(files["METADATA"])
        roots.append(str(site / "b-1.egg"))
    elif case == "path":
        (site / "more" / name).mkdir(parents=True)
        for file, text in files.items():
            (site / "more" / name / file).write_text(text)
        roots.append(site / "more")
    asked = []
    real = importlib.metadata.entry_points
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **options: asked.append(options) or real(**options))
    if case == "python":
        monkeypatch.setattr(sys, "version_info", installed.UNTRIED)
    with only_path(*roots):
        assert {point.name for point in installed.entry_points(GROUP)} == (
            {"acme"} if case == "python" else {"acme", "b"}
        )
    assert asked


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="everything can be read by this user")
def test_what_may_not_be_read_is_as_for_importlib_metadata(site: Path) -> None:
    for closed in (site / "acme-1.0.dist-info" / "entry_points.txt", site / "acme-1.0.dist-info", site):
        closed.chmod(0)
        with only_path(str(site)):
            found = ours(), theirs()
        closed.chmod(0o700)
        assert found[0] == found[1]


def test_this_environment_is_the_same_for_both_down_to_the_origin_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = find_plugins(Selection())
    assert ours() == theirs()
    monkeypatch.setattr(sys, "version_info", installed.UNTRIED)
    assert [each._asdict() | {"entry_point": None} for each in plain] == [
        each._asdict() | {"entry_point": None} for each in find_plugins(Selection())
    ]


def test_an_object_is_loaded_as_an_entry_point_loads_it() -> None:
    for value in ("os.path", "os:path.join", "collections:OrderedDict"):
        distribution = installed.PlainDistribution(Path(), {})
        real = importlib.metadata.EntryPoint("x", value, GROUP)
        assert installed.PlainEntryPoint("x", value, distribution).load() is real.load()


def test_a_listing_imports_neither_importlib_metadata_nor_what_makes_it_slow() -> None:
    code = (
        "import sys; from mt_core.cli.plugins import main; assert main(['list']) == 0;"
        "print(*{'importlib.metadata', 'email', 'socket', 'zipfile', 'rich', 'pydantic'} & sys.modules.keys(), file=sys.stderr)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mt-plugin-standard" in said.stdout
    assert sys.version_info >= installed.UNTRIED or said.stderr.split() == []
