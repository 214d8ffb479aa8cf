"""Features of a frozen encoder, computed once: the same training, for these weights, options and images alone, whatever happens to the
folder."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.multimodal.llava import write_pictures
from tests.multimodal.pictures import picture

from mt_core.errors import DataError, MtError, UsageError
from mt_core.rows import MediaItem
from mt_plugin_multimodal.encoders.vit.model import ViT
from mt_train import train
from mt_train.data.locks import claim
from mt_train.data.media.store import FeatureStore
from mt_train.data.media.store_parts import DATA, INDEX
from mt_train.data.media.store_writer import PartWriter, UnusableStoreError

IMAGES = 4
SHAPE = {"vocab_size": 300, "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 48}
TRAIN = {
    "steps": 2,
    "sequence_len": 64,
    "global_batch_size": 4,
    "micro_batch_size": 2,
    "disable": ["media.*.encoder.*"],
}
Losses = list[tuple[float, float, float | None]]
Run = Callable[..., Losses]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images of each call of the encoder."""
    found: list[int] = []
    forward = ViT.forward

    def counting(self: ViT, inputs: Any, features: Any) -> Any:
        found.append(len(features))
        return forward(self, inputs, features)

    monkeypatch.setattr(ViT, "forward", counting)
    return found


def run_in(folder: Path) -> Run:
    """Write four pictures, and rows with and without them; return what trains a tiny model on them, and returns losses and norms."""
    pictures = write_pictures(folder / "pictures", IMAGES)
    rows = [
        {"prompt": "<image> what", "response": f"it is {number}", "images": [str(pictures[number % IMAGES])]}
        if number % 4
        else {"prompt": "what", "response": f"nothing {number}"}
        for number in range(1, 8)
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, {**rows[0], "images": [str(pictures[0])]}])))

    def run(features: object = None, *, seed: int = 3, more: dict[str, Any] | None = None, **options: Any) -> Any:
        output = folder / "run"
        shutil.rmtree(output, ignore_errors=True)
        kept = {} if features is None else {"features": str(features)}
        raw = {
            "model": {"name": "llama", **SHAPE},
            "objective": "sft",
            "dataset": {"name": "jsonl", "path": str(path)},
            "encoders": {"clip": {**kept, **options}},
            "data": {"eval": 2, "cache": str(folder / "tokens")},
            "train": {**TRAIN, "seed": seed, **(more or {})},
            "eval": {"every_steps": 2},
        }
        train(raw, output=output)
        records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        return [(record["loss"], record["grad_norm"], record.get("eval_loss")) for record in records]

    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_in(tmp_path)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Losses]:
    """A folder that one run has filled, and its losses."""
    folder = tmp_path_factory.mktemp("filled")
    return folder / "kept", run_in(folder)(folder / "kept")


@pytest.fixture
def kept(filled: tuple[Path, Losses], tmp_path: Path) -> Path:
    """A copy of it: the key of a picture does not hang on where it lies."""
    return shutil.copytree(filled[0], tmp_path / "kept")


@pytest.fixture
def plain(filled: tuple[Path, Losses]) -> Losses:
    return filled[1]


def keys_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and len(path.name) == 40]


def test_losses_are_those_of_a_run_without_the_store_and_the_encoder_is_called_once_for_each_content(
    run: Run, calls: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run()
    tokens = keys_in(tmp_path / "tokens")
    assert max(calls) > 1  # there images are encoded together
    calls.clear()
    assert run(tmp_path / "kept") == plain
    assert calls == [1] * IMAGES
    (folder,) = keys_in(tmp_path / "kept")
    assert f"notice: features of 4 items (image) of 4,096 bytes: 16,384 bytes in {folder}" in capsys.readouterr().err
    assert sum(path.stat().st_size for path in folder.glob(f"*{DATA}")) == 4 * 16 * 64 * 4
    assert keys_in(tmp_path / "tokens") == tokens  # rows are not encoded anew
    calls.clear()
    assert run(tmp_path / "kept") == plain
    assert calls == []
    assert "features of" not in capsys.readouterr().err


def test_auto_is_beside_the_tokens(run: Run, plain: Losses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    assert run("auto") == plain
    assert len(keys_in(tmp_path / "cache" / "features")) == 1


@pytest.mark.parametrize("other", [{"seed": 4}, {"mean": [0.4, 0.5, 0.6]}, {"more": {"dtype": "bf16"}}])
def test_other_weights_options_or_precision_use_nothing_that_is_kept(
    run: Run, plain: Losses, calls: list[int], kept: Path, other: dict[str, Any]
) -> None:
    assert run(kept, **other) != plain
    assert calls == [1] * IMAGES
    assert len(keys_in(kept)) == 2


def test_another_vocabulary_beside_the_weights_uses_nothing_that_is_kept(tmp_path: Path) -> None:
    """Letters get other ids, and as many: nothing but the file tells."""
    transformers = pytest.importorskip("transformers")
    letters = ["<cls>", "<pad>", "<eos>", "<unk>", *"ACDE"]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.EsmConfig(
        vocab_size=8, pad_token_id=1, mask_token_id=3, position_embedding_type="rotary", **sizes
    )
    torch.manual_seed(0)
    transformers.EsmModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "esm")
    row = {"prompt": "<protein> what", "response": "it", "protein": "AACDACDE"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))

    def run(**features: str) -> list[float]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        raw = {
            "model": {"name": "llama", **SHAPE},
            "objective": "sft",
            "dataset": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")},
            "encoders": {"hf-sequence": {"weights": str(tmp_path / "esm"), **features}},
            "data": {"eval": None},
            "train": {**TRAIN, "global_batch_size": 1, "micro_batch_size": 1},
        }
        train(raw, output=tmp_path / "run")
        return [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]

    found = []
    for order in (letters, [*letters[:4], *"ECDA"]):
        (tmp_path / "esm" / "vocab.txt").write_text("\n".join(order))
        found.append(run(features=str(tmp_path / "kept")))
        assert found[-1] == run()
    assert found[0] != found[1]


def test_another_projector_or_limit_uses_what_is_kept(run: Run, calls: list[int], kept: Path) -> None:
    run(kept, projector={"name": "linear"}, limit=3)
    assert calls == []


def test_another_content_of_a_file_is_computed_and_the_rest_is_used(
    run: Run, calls: list[int], kept: Path, tmp_path: Path
) -> None:
    picture(30, 30, seed=99).save(tmp_path / "pictures" / "1.png")
    found = run(kept)
    assert calls == [1]
    assert run() == found


def test_code_of_the_encoder_is_in_the_key(
    run: Run, calls: list[int], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt_train.assemble.feature_key.code_hash", lambda *names: f"another {names}")
    run(kept)
    assert calls == [1] * IMAGES


def test_what_is_damaged_is_told_and_computed_anew(
    run: Run, plain: Losses, calls: list[int], kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = keys_in(kept)
    (data,), (index,) = (
        folder.glob(f"*{DATA}"),
        (path for path in folder.glob(f"*{INDEX}") if path.stat().st_size > 200),
    )
    content = bytearray(data.read_bytes())
    content[5000] ^= 1
    data.write_bytes(content)
    assert run(kept) == plain
    assert calls == [1]  # of the others not a bit has changed
    said = capsys.readouterr().err
    assert f"warning: {data}, of stored features, is damaged; those of 1 items are computed anew" in said
    index.write_bytes(index.read_bytes()[:-1])
    calls.clear()
    assert run(kept) == plain
    assert calls == [1] * (IMAGES - 1)
    said = capsys.readouterr().err
    assert f"{index}, of stored features, is damaged" in said
    assert f"{data}, of stored features" not in said  # that was told once


def test_an_encoder_that_trains_keeps_nothing(run: Run, tmp_path: Path) -> None:
    problem = r"encoders\.clip\.features=.*tensors of this encoder are trained .*--train\.disable"
    with pytest.raises(UsageError, match=problem):
        run(tmp_path / "kept", more={"disable": []})
    assert not (tmp_path / "kept").exists()


def test_a_disk_without_room_is_refused_before_anything_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("mt_train.checkpoint.files.shutil.disk_usage", lambda path: usage(0, 0, 16_000))
    with pytest.raises(UnusableStoreError, match=r"16,384 bytes in .*, which has room for 16,000 bytes"):
        run(tmp_path / "kept")
    assert not list((tmp_path / "kept").rglob(f"*{DATA}"))


def test_a_folder_that_cannot_be_made_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableStoreError, match=r"features cannot be kept: .*file.*Not a directory"):
        run(tmp_path / "file" / "kept")


def test_two_runs_on_one_folder_wait_for_one_another(
    run: Run, plain: Losses, calls: list[int], kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = keys_in(kept)
    away = folder.rename(tmp_path / "away")
    handle = claim(folder.with_name(f"{folder.name}.lock"))
    assert handle is not None
    said: list[str] = []

    def finish(text: str) -> None:
        """What the other run does at its end, once this one says that it waits."""
        said.append(text)
        shutil.copytree(away, folder, dirs_exist_ok=True)
        os.close(handle)

    monkeypatch.setattr("mt_train.assemble.feature_filling.notice", finish)
    assert run(kept) == plain
    assert calls == []
    (waits,) = said
    assert waits.startswith("waiting for another run")


# ---------------------------------------------------------------------------------------------------- the folder alone


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    (tmp_path / "store").mkdir()
    return FeatureStore(tmp_path / "store", 8)


def item(number: int) -> MediaItem:
    return MediaItem("clip", content=bytes([number]), digest=b"")


def features(number: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((3, 8), float(number)).to(dtype)


def write(store: FeatureStore, *numbers: int, dtype: torch.dtype = torch.float32) -> None:
    writer = PartWriter(store.folder, store.width)
    for number in numbers:
        writer.add(store.key_of(item(number)), features(number, dtype))
    writer.close()
    writer.refuse_unwritten()


@pytest.fixture
def small_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_every_precision_comes_back_bit_for_bit(store: FeatureStore) -> None:
    for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
        write(store, number, dtype=dtype)
    store.open()
    for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
        found = store.read(item(number), 3)
        assert found.dtype is dtype
        assert torch.equal(found, features(number, dtype))


def test_a_killed_writer_loses_only_what_was_not_whole(store: FeatureStore) -> None:
    write(store, 1, 2)
    killed = PartWriter(store.folder, store.width)
    killed.add(store.key_of(item(3)), features(3))
    store.open()
    assert [store.key_of(item(number)) in store for number in (1, 2, 3)] == [True, True, False]
    assert len(list(store.folder.glob(f"*{DATA}"))) == 2
    store.open(repair=lambda text: None)
    assert len(list(store.folder.glob(f"*{DATA}"))) == 1


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_named_and_loses_nothing(store: FeatureStore) -> None:
    with pytest.raises(UnusableStoreError, match=r"File too large\. What is whole is kept: make room"):
        write(store, *range(20))  # 96 bytes each
    store.open()
    assert len(store) == 10


def test_damage_after_a_run_began_stops_it_and_is_found_by_the_next(store: FeatureStore) -> None:
    write(store, 1, 2)
    store.open()
    (data,) = store.folder.glob(f"*{DATA}")
    about = data.stat()
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)
    os.utime(data, ns=(about.st_atime_ns, about.st_mtime_ns))  # as a disk does it, which tells nobody
    store.open()
    with pytest.raises(DataError, match="damaged after the run began; resume the run"):
        store.read(item(1), 3)
    store.open(repair=lambda text: None)
    assert store.key_of(item(1)) not in store
    assert torch.equal(store.read(item(2), 3), features(2))


def test_an_index_that_somebody_wrote_otherwise_counts_for_nothing(store: FeatureStore) -> None:
    write(store, 1)
    (index,) = store.folder.glob(f"*{INDEX}")
    whole = index.read_bytes()
    for place in range(0, len(whole), 7):
        index.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        store.open()
        assert len(store) == 0


def test_a_file_is_read_again_only_where_it_may_have_changed(
    store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"one")
    os.utime(path, (1e9, 1e9))
    hashed: list[Path] = []
    real = FeatureStore.key_of.__globals__["sha256"]
    monkeypatch.setattr("mt_train.data.media.store.sha256", lambda path: hashed.append(path) or real(path))
    media = MediaItem("clip", str(path), digest=b"12345678")
    first = store.key_of(media)
    store.remember()
    store.open()
    assert store.key_of(media) == first
    assert len(hashed) == 1
    path.write_bytes(b"two")
    os.utime(path, (1e9, 1e9))
    assert store.key_of(media) != first
    with pytest.raises(DataError, match="not what it was when its features were stored"):
        store.read(media, 3)
    path.unlink()
    with pytest.raises(MtError, match="cannot be read any more"):
        store.read(media, 3)
