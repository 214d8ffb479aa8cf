"""Steps of ``mt-export`` after a folder is written. What cannot be done is refused before anything is written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mt_core.errors import UsageError
from mt_core.plugins.host import PluginHost
from mt_core.tracking.logs import notice
from mt_tools.convert.adapter_readers import VLLM_RANKS
from mt_tools.convert.check import Reader, check, expect
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
        return cls(arguments, given, host, reader, repository)

    def run(self, out: Path) -> None:
        """Do them. Raises ``WeightsError`` where the reader makes something else of the folder, and what ``push`` raises."""
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
        return f"{out}: {check(reader, expected, out, base=base, rank=rank, context=context)}"


def _find_reader(arguments: argparse.Namespace, source: Source) -> Reader:
    """Return the reader that is asked for. Raises ``UsageError`` where it is not here, or cannot open what is written."""
    if source.parts.objective_component.head == "own" or source.parts.encoders:
        raise UsageError(f"--check continues texts, and {source.path} is no model of text alone; leave it out")
    if not arguments.merge and arguments.check == "llama.cpp":
        raise UsageError("--check llama.cpp opens a GGUF file of a whole model; add --merge --gguf FILE")
    if not arguments.merge and source.weights is None:
        raise UsageError(f"{source.path} began with no folder of weights, which a reader would need; use --merge")
    return Reader.find(arguments.check, arguments.reader, adapter=not arguments.merge)


def _vllm_rank(out: Path) -> int:
    """Return the least of vLLM's values for the rank of an adapter."""
    rank = json.loads((out / CONFIG).read_text(encoding="utf-8")).get("r", 1)
    return next((each for each in VLLM_RANKS if each >= rank), VLLM_RANKS[-1])
