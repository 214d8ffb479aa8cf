"""Entry point of the datasets plugin: says what it offers, holds no logic, imports neither pyarrow nor datasets."""

from __future__ import annotations

from functools import partial

from mt_core import Component, DatasetComponent, hookimpl

from .columnar import ArrowConfig, ParquetConfig, arrow_files, build_arrow, build_parquet, parquet_files
from .delimited import CsvConfig, TsvConfig, build_delimited, delimited_files
from .hub import HubConfig, build_hub, hub_files
from .indexed import MegatronConfig, build_megatron, megatron_files
from .mds import MdsConfig, build_mds, mds_files
from .mixing import ConcatConfig, build_concat, concat_files, parts
from .sets.build import (
    GlueConfig,
    SetConfig,
    TruthfulConfig,
    build_glue,
    build_set,
    build_truthful,
    glue_files,
    set_files,
    truthful_files,
)
from .sets.table import SETS
from .streaming import StreamConfig, build_stream
from .tokens import TokensConfig, build_tokens, token_files
from .webdataset import WebDatasetConfig, build_shards, shard_files


@hookimpl
def mt_datasets() -> list[Component]:
    return [*_tables(), *_prepared(), *_others(), *_sets()]


def _tables() -> list[Component]:
    return [
        DatasetComponent(
            name="csv",
            config=CsvConfig,
            files=delimited_files,
            build=build_delimited,
            summary="CSV files: a header and rows, fields as text",
            source="https://www.rfc-editor.org/rfc/rfc4180",
        ),
        DatasetComponent(
            name="tsv",
            config=TsvConfig,
            files=delimited_files,
            build=build_delimited,
            summary="TSV files: a header and rows, fields as text",
            source="https://www.iana.org/assignments/media-types/text/tab-separated-values",
        ),
        DatasetComponent(
            name="parquet",
            config=ParquetConfig,
            files=parquet_files,
            build=build_parquet,
            summary="Parquet files, read one row group at a time",
            source="https://parquet.apache.org",
        ),
        DatasetComponent(
            name="arrow",
            config=ArrowConfig,
            files=arrow_files,
            build=build_arrow,
            summary="Arrow IPC files and streams, memory-mapped",
            source="https://arrow.apache.org/docs/format/Columnar.html",
        ),
    ]


def _prepared() -> list[Component]:
    return [
        DatasetComponent(
            name="tokens",
            config=TokensConfig,
            files=token_files,
            build=build_tokens,
            summary="token ids in .npy or .bin files, memory-mapped, split into documents",
            source="https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html",
        ),
        DatasetComponent(
            name="megatron",
            config=MegatronConfig,
            files=megatron_files,
            build=build_megatron,
            summary="Megatron's indexed datasets (.bin and .idx): documents of token ids, memory-mapped",
            source="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/indexed_dataset.py",
        ),
        DatasetComponent(
            name="mds",
            config=MdsConfig,
            files=mds_files,
            build=build_mds,
            summary="MosaicML's shards (index.json and .mds), uncompressed or zstd",
            source="https://github.com/mosaicml/streaming",
        ),
        DatasetComponent(
            name="webdataset",
            config=WebDatasetConfig,
            files=shard_files,
            build=build_shards,
            summary="WebDataset's shards: samples in .tar files, with text, JSON, labels, images and sounds",
            source="https://github.com/webdataset/webdataset",
        ),
    ]


def _others() -> list[Component]:
    return [
        DatasetComponent(
            name="hf",
            config=HubConfig,
            files=hub_files,
            build=build_hub,
            summary="Hugging Face datasets: a name of the Hub, a folder, or what save_to_disk wrote",
            source="https://huggingface.co/docs/datasets",
        ),
        Component(
            name="stream",
            config=StreamConfig,
            build=build_stream,
            summary="JSON lines or text of any size, read from the front while the run trains",
            source="https://jsonlines.org",
        ),
        DatasetComponent(
            name="concat",
            config=ConcatConfig,
            files=concat_files,
            build=build_concat,
            parts=parts,
            summary="several datasets as one: in sequence, or mixed by rows, tokens or temperature",
            source="https://arxiv.org/abs/1907.05019",
        ),
    ]


def _sets() -> list[Component]:
    glue = DatasetComponent(
        name="glue",
        config=GlueConfig,
        files=glue_files,
        build=build_glue,
        summary="nine tasks of language understanding",
        source="https://gluebenchmark.com",
    )
    truthful = DatasetComponent(
        name="truthfulqa",
        config=TruthfulConfig,
        files=truthful_files,
        build=build_truthful,
        summary="817 questions that many people answer wrongly (Apache-2.0)",
        source="https://github.com/sylinrl/TruthfulQA",
    )
    named = [
        DatasetComponent(
            name=each.name,
            config=SetConfig,
            files=partial(set_files, name=each.name),
            build=partial(build_set, name=each.name),
            summary=f"{each.summary} ({each.licence})",
            source=each.source,
        )
        for each in SETS.values()
    ]
    return [*named, glue, truthful]
