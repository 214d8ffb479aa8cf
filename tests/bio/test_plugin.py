"""What every encoder of sequences promises to the trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from drawn import COMPONENTS, drawn, noisy

from mt_core.media import MediaItem

SMALL: dict[str, Any] = {"dim": 16, "n_layers": 2}
OPTIONS: dict[str, Any] = {
    "hyenadna": SMALL,
    "dnabert2": {**SMALL, "n_heads": 2, "ffn_dim": 8, "k": 2},
    "nucleotide-transformer": {**SMALL, "n_heads": 2, "ffn_dim": 8},
    "esm2": {**SMALL, "n_heads": 2, "ffn_dim": 8},
}
NAMES = sorted(COMPONENTS)


def config_of(name: str) -> Any:
    return COMPONENTS[name].config(**OPTIONS[name])


def test_each_encoder_is_here() -> None:
    assert sorted(OPTIONS) == NAMES
    assert {name: sorted(each.reads) for name, each in COMPONENTS.items() if "dna" not in each.reads} == {
        "esm2": ["protein"]
    }


@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_runs_in_bf16(name: str) -> None:
    component, config = COMPONENTS[name], config_of(name)
    encoder = noisy(drawn(name, config))
    (kind,) = component.reads
    letters = b"LAGVSE" if kind == "protein" else b"ACGTNA"
    ids = [
        torch.from_numpy(component.processor(config).read(MediaItem(name, content=letters * n))["ids"]) for n in (1, 5)
    ]
    inputs, features = {"ids": torch.cat(ids)}, [len(each) for each in ids]
    rounded = encoder.bfloat16()(inputs, features)
    exact = encoder.float()(inputs, features)  # of the same weights
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0.1, atol=0.15)


def test_sequences_are_read_without_torch() -> None:
    code = (
        "import sys; from mt_plugin_bio.plugin import mt_encoders; from mt_core.media import MediaPart\n"
        "for each in mt_encoders():\n"
        "    each.processor(each.config()).measure(MediaPart('dna', content=b'ACG'))\n"
        "    each.width(each.config())\n"
        "assert 'torch' not in sys.modules and 'tokenizers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
