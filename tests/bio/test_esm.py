"""ESM-2 and Nucleotide Transformer v2 against transformers' EsmModel, with what the latter has otherwise written here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import EsmConfig, EsmModel, EsmTokenizer
from transformers.models.esm.configuration_esm import get_default_vocab_list

sys.path.insert(0, str(Path(__file__).parent))

from drawn import COMPONENTS, drawn, ids_of, together

from mt_core import DataError, WeightsError
from mt_core.media import MediaItem, MediaPart
from mt_plugin_bio.esm.config import ESM2_IDS, ESM2Config, NucleotideTransformerConfig
from mt_plugin_bio.vocabularies import kmers

SHAPE: dict[str, Any] = {"dim": 24, "n_layers": 2, "n_heads": 3, "ffn_dim": 20}
THEIRS: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "position_embedding_type": "rotary",
    "emb_layer_norm_before": False,
    "pad_token_id": 1,
}
PROTEIN = {**THEIRS, "vocab_size": 33, "token_dropout": True, "mask_token_id": 32, "layer_norm_eps": 1e-5}
DNA = {**THEIRS, "vocab_size": 4107, "token_dropout": False, "mask_token_id": 2, "layer_norm_eps": 1e-12}
SEQUENCES = {
    "esm2": [b"MKTAYIAKQRQISFVKSHFSRQ", b"W", b"LLXBUZOACDE"],
    "nucleotide-transformer": [b"ACGTACGTACGTAAN", b"G", b"TTGACATTACNNGATTACACCGGTTAA"],
}
CONFIGS = {"esm2": ESM2Config(**SHAPE), "nucleotide-transformer": NucleotideTransformerConfig(**SHAPE)}
NAMES = list(CONFIGS)


class GatedIntermediate(nn.Module):
    """What Nucleotide Transformer v2 has for an MLP's first half: x1 activates x2, and there is no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(24, 40, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        both = self.dense(x)
        return both[..., :20] * torch.sigmoid(both[..., :20]) * both[..., 20:]


def reference(name: str) -> EsmModel:
    """Transformers' own model; with other MLPs where it is not the same."""
    torch.manual_seed(0)
    model = EsmModel(EsmConfig(**(PROTEIN if name == "esm2" else DNA)), add_pooling_layer=False)
    if name == "nucleotide-transformer":
        for layer in model.encoder.layer:
            layer.intermediate = GatedIntermediate()
            layer.output.dense = nn.Linear(20, 24, bias=False)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn(tensor.shape), alpha=0.1)
    return model.eval()


def same_weights(name: str, model: EsmModel) -> Any:
    encoder = drawn(name, CONFIGS[name])
    theirs = model.state_dict()
    encoder.load_state_dict({each: theirs[each] for each in encoder.state_dict()})
    return encoder


def items(name: str) -> list[Tensor]:
    return [ids_of(name, CONFIGS[name], each) for each in SEQUENCES[name]]


@pytest.mark.parametrize("name", NAMES)
def test_features_equal_transformers_model(name: str) -> None:
    model = reference(name)
    encoder = same_weights(name, model)
    for ids, found in zip(items(name), together(encoder, items(name)), strict=True):
        expected = model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None]).last_hidden_state[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_a_hidden_state_of_transformers(name: str) -> None:
    model = reference(name)
    ids = items(name)[0]
    states = model(
        input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], output_hidden_states=True
    ).hidden_states
    for layer in (0, 1, -2):
        encoder = COMPONENTS[name].build(type(CONFIGS[name])(**SHAPE, layer=layer)).eval()
        encoder.load_state_dict({each: model.state_dict()[each] for each in encoder.state_dict()})
        torch.testing.assert_close(encoder({"ids": ids}, [len(ids)]), states[layer][0], rtol=0, atol=1e-5)
    assert not any(".layer.1." in each or "norm_after" in each for each, _ in encoder.named_parameters())


@pytest.mark.parametrize(
    ("name", "size", "millions"),
    [
        ("esm2", "8m", 7.5),
        ("esm2", "650m", 651),
        ("nucleotide-transformer", "50m", 52.5),
        ("nucleotide-transformer", "500m", 497),
    ],
)
def test_sizes_have_the_parameters_of_their_names(name: str, size: str, millions: float) -> None:
    """The folder of 50m has 55.9 million: 2.4 more in the language head, and 1.0 in positions that nothing reads."""
    with torch.device("meta"):
        encoder = COMPONENTS[name].build(type(CONFIGS[name])(size=size))
    assert sum(tensor.numel() for tensor in encoder.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)


# ------------------------------------------------------------------------------------------------------------ letters


def test_ids_of_proteins_are_those_of_transformers() -> None:
    assert list(ESM2_IDS) == list(get_default_vocab_list())
    ids = ids_of("esm2", CONFIGS["esm2"], b"LAMO")
    assert ids.tolist() == [0, 4, 5, 20, 28, 2]
    with pytest.raises(DataError, match="letter 2 of 3 of the protein sequence is 'J'"):
        COMPONENTS["esm2"].processor(CONFIGS["esm2"]).measure(MediaPart("protein", content=b"LJL"))


def write_vocabulary(folder: Path) -> Path:
    words = ["<unk>", "<pad>", "<mask>", "<cls>", *kmers(6, "ATCG"), *"ATCGN", "<eos>", "<bos>"]
    (folder / "vocab.txt").write_text("\n".join(words))
    return folder


def test_six_letters_are_an_id_unless_an_n_breaks_them_as_transformers_reads_them(tmp_path: Path) -> None:
    theirs = EsmTokenizer(str(write_vocabulary(tmp_path) / "vocab.txt"), eos_token=None)
    config = NucleotideTransformerConfig(**SHAPE, weights=str(tmp_path))
    random = np.random.default_rng(0)
    for _ in range(40):
        letters = "".join(random.choice(list("ACGTN"), size=random.integers(1, 40), p=[0.24, 0.24, 0.24, 0.24, 0.04]))
        assert ids_of("nucleotide-transformer", config, letters.encode()).tolist() == theirs(letters)["input_ids"], (
            letters
        )


def test_a_vocabulary_with_less_is_refused(tmp_path: Path) -> None:
    config = NucleotideTransformerConfig(**SHAPE, weights=str(tmp_path))
    (tmp_path / "vocab.txt").write_text("<cls>\nA\nC\nG\nT\nN")
    with pytest.raises(WeightsError, match="lacks 4,096 of the tokens"):
        config.build_vocabulary()
    (tmp_path / "vocab.txt").write_text("<cls>\nÄ", "utf-8")
    with pytest.raises(WeightsError, match="no text in ASCII"):
        config.build_vocabulary()


# ------------------------------------------------------------------------------------------------------------ folders


def published_folder(name: str, folder: Path, **changes: Any) -> tuple[Path, EsmModel]:
    model = reference(name)
    model.save_pretrained(folder)
    about = json.loads((folder / "config.json").read_text()) | ({} if name == "esm2" else {"add_bias_fnn": False})
    (folder / "config.json").write_text(json.dumps(about | changes))
    return write_vocabulary(folder), model


@pytest.mark.parametrize("name", NAMES)
def test_a_published_folder_gives_the_features_of_transformers(name: str, tmp_path: Path) -> None:
    folder, model = published_folder(name, tmp_path)
    matching = [each.name for each in COMPONENTS.values() for form in each.formats if form.matches(folder)]
    assert matching == [name]
    (form,) = COMPONENTS[name].formats
    config = type(CONFIGS[name])(weights=str(folder), **form.values(folder))
    assert not config.half_frequencies
    encoder = COMPONENTS[name].build(config).eval()
    loaded = {each: load() for each, load in form.tensors(folder, config).items()}
    assert set(loaded) == {each for each, _ in encoder.named_parameters()}
    encoder.load_state_dict(loaded)
    item = MediaItem(name, content=SEQUENCES[name][0])
    ids = torch.from_numpy(COMPONENTS[name].processor(config).read(item)["ids"])
    torch.testing.assert_close(
        encoder({"ids": ids}, [len(ids)]), model(input_ids=ids[None]).last_hidden_state[0], rtol=0, atol=1e-5
    )


def test_frequencies_that_were_rounded_to_fp16_hold(tmp_path: Path) -> None:
    model = reference("esm2")
    model.rotary_embeddings.inv_freq.copy_(model.rotary_embeddings.inv_freq.half().float())
    model.save_pretrained(tmp_path)
    (form,) = COMPONENTS["esm2"].formats
    config = ESM2Config(weights=str(tmp_path), **form.values(tmp_path))
    assert config.half_frequencies
    encoder = COMPONENTS["esm2"].build(config).eval()
    encoder.load_state_dict({each: load() for each, load in form.tensors(tmp_path, config).items()})
    ids = ids_of("esm2", config, SEQUENCES["esm2"][0] * 20)
    expected = EsmModel.from_pretrained(tmp_path, add_pooling_layer=False)(input_ids=ids[None]).last_hidden_state[0]
    torch.testing.assert_close(encoder({"ids": ids}, [len(ids)]), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"position_embedding_type": "absolute"},
            "position_embedding_type='absolute'; this encoder is built for 'rotary' only",
        ),
        ({"token_dropout": False}, "token_dropout=False"),
        ({"emb_layer_norm_before": True}, "emb_layer_norm_before=True"),
    ],
)
def test_other_maths_is_refused_by_name(changes: Any, message: str, tmp_path: Path) -> None:
    folder, _ = published_folder("esm2", tmp_path, **changes)
    with pytest.raises(WeightsError, match=message):
        COMPONENTS["esm2"].formats[0].values(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("num_attention_heads", 0), ("hidden_size", "16"), ("num_hidden_layers", None)]
)
def test_a_number_of_a_folder_that_is_none_is_refused_by_its_key(key: str, value: Any, tmp_path: Path) -> None:
    folder, _ = published_folder("esm2", tmp_path, **{key: value})
    with pytest.raises(WeightsError, match=f"{key}={value!r}, and it must be a whole number above 0"):
        COMPONENTS["esm2"].formats[0].values(folder)


def test_heads_that_do_not_fit_are_refused_on_paper() -> None:
    with pytest.raises(ValueError, match="dim=24 is not a multiple of 2 · n_heads=16"):
        ESM2Config(**{**SHAPE, "n_heads": 8})
