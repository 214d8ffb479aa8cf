"""DNABERT-2 against its formula in fp64, its vocabularies, and its folder."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from bert_reference import SLOPES_12, bert, published
from drawn import COMPONENTS, drawn, ids_of, noisy, together

from mt_core import WeightsError
from mt_core.media import MediaItem, MediaPart
from mt_plugin_bio.dnabert2.config import DNABERT2Config

SHAPE: dict[str, Any] = {"dim": 24, "n_layers": 2, "n_heads": 12, "ffn_dim": 10}
TINY = DNABERT2Config(**SHAPE, vocabulary="character")
SEQUENCES = [b"ACGTNACGGT", b"G", b"TTGACATTACNNGATTACA"]


def references(encoder: Any, scores: Callable[[Tensor, int, int, int], Tensor]) -> list[Tensor]:
    weights = {name: tensor.double() for name, tensor in encoder.state_dict().items()}
    return [bert(ids_of("dnabert2", TINY, each), weights, 2, 12, scores) for each in SEQUENCES]


def items() -> list[Tensor]:
    return [ids_of("dnabert2", TINY, each) for each in SEQUENCES]


def test_features_equal_the_formula_in_fp64() -> None:
    encoder = noisy(drawn("dnabert2", TINY))
    expected = references(encoder, published(2))
    for found, wanted in zip(together(encoder, items()), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)
    for found, wanted in zip(together(encoder.double(), items()), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def causal(product: Tensor, head: int, i: int, j: int) -> Tensor:
    return product / math.sqrt(2) - SLOPES_12[head] * abs(i - j) if j <= i else torch.tensor(-math.inf).double()


def without_alibi(product: Tensor, head: int, i: int, j: int) -> Tensor:
    return product / math.sqrt(2)


def times_root(product: Tensor, head: int, i: int, j: int) -> Tensor:
    return product * math.sqrt(2) - SLOPES_12[head] * abs(i - j)


@pytest.mark.parametrize("fault", [causal, without_alibi, times_root])
def test_a_wrong_attention_would_be_seen(fault: Any) -> None:
    """Each of these is what a trainer that is in use computes."""
    encoder = noisy(drawn("dnabert2", TINY))
    found, wrong = together(encoder, items())[2], references(encoder, fault)[2]
    assert (found.double() - wrong).abs().max() > 1e-2


def test_layers_above_the_chosen_one_are_not_built() -> None:
    names = [name for name, _ in drawn("dnabert2", DNABERT2Config(**SHAPE, layer=-2)).named_parameters()]
    assert any(".layer.0." in name for name in names)
    assert not any(".layer.1." in name for name in names)


def test_the_published_size_has_the_parameters_of_its_name() -> None:
    with torch.device("meta"):
        encoder = COMPONENTS["dnabert2"].build(DNABERT2Config(size="117m", vocabulary="kmer", vocab_size=4106))
    assert sum(tensor.numel() for tensor in encoder.parameters()) / 1e6 == pytest.approx(117, rel=0.02)


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"vocabulary": "character"}, [1, 5, 6, 7, 8, 9, 5, 6, 7, 8, 8, 2]),
        ({"vocabulary": "kmer", "k": 2}, [1, 5 + 1, 5 + 11, 21 + 4, 5 + 1, 5 + 11, 21 + 3, 2]),
        ({"k": 4}, [1, 5 + 27, 261 + 4, 5 + 27, 261 + 3, 2]),
    ],
)
def test_a_drawn_model_needs_no_file(options: Any, ids: list[int]) -> None:
    config = DNABERT2Config(**SHAPE, **options)
    read = ids_of("dnabert2", config, b"ACGTNACGTT")
    assert read.tolist() == ids
    assert drawn("dnabert2", config)({"ids": read}, [len(read)]).shape == (len(read), 24)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": "bpe"}, "vocabulary=bpe needs a folder with tokenizer.json"),
        ({"n_heads": 5}, "dim=24 is not a multiple of n_heads=5"),
        ({"vocab_size": 100}, "vocab_size=100 is less than the 4,106 ids of vocabulary kmer"),
        ({"layer": -4}, "layer=-4, and the encoder has 2 layers"),
    ],
)
def test_parts_that_do_not_fit_are_refused_on_paper(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DNABERT2Config(**{**SHAPE, **options})


# ------------------------------------------------------------------------------------------------------------- folder


def write_tokenizer(folder: Path) -> None:
    """Byte pairs as DNABERT-2 has them, with a truncation that must not hold."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=20, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"], initial_alphabet=list("ACGT")
    )
    tokenizer.train_from_iterator(["ACGTACGGTACACGTTTACG" * 3], trainer)
    tokenizer.enable_truncation(4)
    tokenizer.save(str(folder / "tokenizer.json"))


def published_folder(folder: Path) -> Path:
    """A folder as the hub has it, but for the form of its weights."""
    folder.mkdir()
    encoder = noisy(drawn("dnabert2", DNABERT2Config(**SHAPE, vocab_size=20, vocabulary="character")))
    tensors = {f"bert.{name}": tensor.clone() for name, tensor in encoder.state_dict().items()}
    heads = ("bert.pooler.dense.weight", "cls.predictions.bias", "bert.embeddings.position_embeddings.weight")
    save_file(tensors | {name: torch.zeros(2) for name in heads}, folder / "model.safetensors")
    sizes = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 12,
        "intermediate_size": 10,
        "vocab_size": 20,
    }
    about = {
        "model_type": "bert",
        "alibi_starting_size": 512,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    }
    (folder / "config.json").write_text(json.dumps(sizes | about))
    write_tokenizer(folder)
    return folder


def test_a_published_folder_is_read_with_its_tokenizer(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "folder")
    component = COMPONENTS["dnabert2"]
    (form,) = component.formats
    assert form.matches(folder)
    config = DNABERT2Config(weights=str(folder), **form.values(folder))
    encoder = component.build(config)
    loaded = {name: load() for name, load in form.tensors(folder, config).items()}
    assert set(loaded) == {name for name, _ in encoder.named_parameters()}
    encoder.load_state_dict(loaded)
    processor = component.processor(config)
    ids = processor.read(MediaItem("dnabert2", content=b"ACGTACGGTACACGTTTACGN" * 2))["ids"]
    assert (ids[0], ids[-1]) == (1, 2)
    assert 4 < len(ids) < 44, "byte pairs, none cut"
    assert 0 in ids, "an N is unknown"
    assert encoder({"ids": torch.from_numpy(ids)}, [len(ids)]).shape == (len(ids), 24)


def test_layers_above_the_chosen_one_are_not_read(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "folder")
    (form,) = COMPONENTS["dnabert2"].formats
    config = DNABERT2Config(weights=str(folder), layer=-2, **form.values(folder))
    assert set(form.tensors(folder, config)) == {
        name for name, _ in COMPONENTS["dnabert2"].build(config).named_parameters()
    }


def test_a_pickle_is_refused_with_how_to_convert_it(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "folder")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (form,) = COMPONENTS["dnabert2"].formats
    with pytest.raises(WeightsError, match="a pickle is not opened here; convert it once"):
        form.tensors(folder, DNABERT2Config(weights=str(folder), **SHAPE))


def test_another_bert_is_none_of_it(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "folder")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert not COMPONENTS["dnabert2"].formats[0].matches(folder)


def test_a_damaged_tokenizer_is_told_with_its_file(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    vocabulary = DNABERT2Config(tokenizer=str(tmp_path)).build_vocabulary()
    with pytest.raises(WeightsError, match=r"cannot read .*tokenizer\.json.*fetch it again"):
        vocabulary.encode(b"ACGT")


def test_a_tokenizer_with_more_ids_than_the_embedding_has_rows_is_refused(tmp_path: Path) -> None:
    """Before anything is trained: a lookup behind the last row is a traceback, and on a GPU it ends the process."""
    write_tokenizer(tmp_path)
    processor = COMPONENTS["dnabert2"].processor(DNABERT2Config(tokenizer=str(tmp_path), vocab_size=19))
    with pytest.raises(
        WeightsError, match=r"tokenizer\.json has 20 ids, and the embedding 19 rows; set vocab_size to 20"
    ):
        processor.measure(MediaPart("dna", content=b"ACGT"))
    fits = COMPONENTS["dnabert2"].processor(DNABERT2Config(tokenizer=str(tmp_path), vocab_size=20))
    assert fits.measure(MediaPart("dna", content=b"ACGT")).features > 2
