"""``--print-config``: what it prints is a config that says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mt_train.cli.train import main
from mt_train.config.files import read_config

LONG = "Answer in one sentence, politely and briefly, and never say more than is needed, whoever asks, whatever for, and however often."


@pytest.mark.parametrize(
    "text",
    [
        "short",
        "x" * 37,
        "x" * 38,
        "/data/projects/rows/of/2026/november/train.jsonl",
        LONG,
        f"{LONG}: with a colon # and a mark",
        "two\nlines",
        "a gap\n\n  and # a mark\nat the end\n",
        "'quoted'\n\n\n\nafter many",
        "\u2028other\u0085ends\u2029of\rlines\x0b",
    ],
)
def test_a_printed_config_reads_back_as_the_same_one(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], needs: Callable[[str], None]
) -> None:
    needs("mt-plugin-llama")
    path = tmp_path / "printed.yaml"
    assert main(["--model", "llama", f"--data.system={text}", "--data.prefix=#", "--print-config"]) == 0
    path.write_text(printed := capsys.readouterr().out, encoding="utf-8")
    assert read_config(path)["data"]["system"] == text
    assert "  # command line" in printed
    assert main(["--config", str(path), "--print-config"]) == 0
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert read_config(path)["data"]["system"] == text


def test_a_value_of_several_lines_has_its_source_above_it(
    capsys: pytest.CaptureFixture[str], needs: Callable[[str], None]
) -> None:
    needs("mt-plugin-llama")
    assert main(["--model", "llama", "--data.system", LONG, "--print-config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("  system: "))
    assert lines[place - 1].strip() == "# command line"
    assert not any("#" in line for line in lines[place : place + 2])
