"""Steps of ``mt-export`` after a folder is written. What cannot be done is refused before anything is written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mt_core.errors import UsageError
from mt_core.plugins.host import PluginHost
from mt_core.tracking.logs import notice
from mt_tools.cli.convert_options import unused_path
from mt_tools.convert.adapter_readers import VLLM_RANKS
from mt_tools.convert.check import Reader, check, expect
from mt_tools.convert.gguf.writer import TYPES, check_source, find_gguf, write_gguf
from mt_tools.convert.ollama import check_template, write_modelfile
from mt_tools.convert.publish import Repository, push
from mt_tools.convert.source import Source, open_source
from mt_train.adapters.folder import CONFIG


@dataclass(frozen=True)
class AfterExport:
    """The steps after writing, in their order."""

    arguments: argparse.Namespace
    sources: Sequence[Source]
    host: PluginHost
    reader: Reader | None
    repository: Repository | None
    gguf: Path | None

    @classmethod
    def of(
        cls, arguments: argparse.Namespace, sources: Sequence[tuple[Source, float]], host: PluginHost
    ) -> AfterExport:
        """Return the steps that the options ask for. Raises ``UsageError`` for one that cannot be done."""
        if arguments.reader is not None and arguments.check is None:
            raise UsageError("--reader belongs to --check; leave it out, or name the reader")
        if arguments.private and arguments.push is None:
            raise UsageError("--private belongs to --push; leave it out, or say where to push to")
        given = [source for source, _ in sources]
        reader = None if arguments.check is None else _find_reader(arguments, given[0])
        repository = None if arguments.push is None else Repository.named(arguments.push, private=arguments.private)
        return cls(arguments, given, host, reader, repository, _find_file(arguments, given[0]))

    def run(self, out: Path) -> None:
        """Do them. Raises ``WeightsError`` where the reader makes something else of the folder, and what ``push`` raises."""
        if self.gguf is not None:
            print(write_file(out, self.gguf, self.arguments.gguf_type, notice))
        if self.arguments.ollama:
            file = write_modelfile(out, self.gguf, self.sources[0].parts.config.data)
            print(f"{file}: ollama create {out.name} -f {file}")
        if self.reader is not None:
            print(self._check(self.reader, out))
        if self.repository is not None:
            paths = [each.path for each in self.sources]
            paths += [each.weights for each in self.sources if each.weights is not None]
            print(push(out, self.repository, [*paths, out.absolute().parent], notice))

    def _check(self, reader: Reader, out: Path) -> str:
        from mt_train.assemble.load import load

        base, rank = None, 1
        source = self.sources[0]
        if self.arguments.merge:
            family = source.parts.offers["model"].qualified_name
            source = open_source(str(out), self.host, family)
        else:
            base, rank = source.weights, _vllm_rank(out)
        loaded = load(source.parts, source.checkpoint, notice)
        expected, context = expect(loaded), loaded.max_seq_len
        del loaded
        opened = self.gguf if reader.name == "llama.cpp" and self.gguf is not None else out
        return f"{opened}: {check(reader, expected, opened, base=base, rank=rank, context=context)}"


def write_file(folder: Path, file: Path, kind: str | None, say: Callable[[str], None]) -> str:
    """Write the GGUF file of a folder, and describe it."""
    write_gguf(folder, file, kind or TYPES[1], say)
    return f"{file}: {file.stat().st_size / 1e6:,.2f} MB"


def _find_reader(arguments: argparse.Namespace, source: Source) -> Reader:
    """Return the reader that is asked for. Raises ``UsageError`` where it is not here, or cannot open what is written."""
    if source.parts.objective_component.head == "own":
        raise UsageError(f"--check continues texts, and {source.path} has a head that gives none; leave it out")
    if encoders := [each.name for each in source.parts.encoders]:
        raise UsageError(
            f"--check opens folders of text models, as the readers' classes for them do, and {source.path} has encoders of media"
            f" ({', '.join(encoders)}); leave it out, and compare with the class that config.json names"
        )
    if arguments.check == "llama.cpp" and arguments.gguf is None:
        raise UsageError("--check llama.cpp opens a GGUF file of a whole model; add --merge --gguf FILE")
    if not arguments.merge and source.weights is None:
        raise UsageError(f"{source.path} began with no folder of weights, which a reader would need; use --merge")
    return Reader.find(arguments.check, arguments.reader, adapter=not arguments.merge)


def _find_file(arguments: argparse.Namespace, source: Source) -> Path | None:
    """Return where the GGUF file is to be. Raises ``UsageError`` for what no such file, or no Modelfile, says."""
    given = [name for name in ("gguf", "ollama") if getattr(arguments, name)]
    if arguments.gguf_type is not None and arguments.gguf is None:
        raise UsageError("--gguf-type belongs to --gguf; leave it out, or name the file")
    if given and not arguments.merge:
        raise UsageError(f"--{given[0]} is of a whole model; add --merge")
    if arguments.ollama:
        check_template(source.parts.config.data)
    if arguments.gguf is None:
        return None
    find_gguf()
    assert source.writer.exported is not None, "opened() chose a format that writes"
    check_source(source.writer.exported(source.parts.config.model.options))
    return unused_path(arguments.gguf)


def _vllm_rank(out: Path) -> int:
    """Return the least of vLLM's values for the rank of an adapter."""
    rank = json.loads((out / CONFIG).read_text(encoding="utf-8")).get("r", 1)
    return next((each for each in VLLM_RANKS if each >= rank), VLLM_RANKS[-1])
