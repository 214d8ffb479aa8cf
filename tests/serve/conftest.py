"""One server for most tests: a random model of bytes, eight rows at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from served import LatinTokenizer, Server, model_of, running, twins

from mt_train import LoadedModel


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    """A random model of bytes with a context of 128 tokens, in fp32."""
    tokenizer = LatinTokenizer()
    return LoadedModel(twins(tokenizer.size)[0], tokenizer, 128, (tokenizer.eos_id,))


@pytest.fixture(scope="session")
def server(loaded: LoadedModel) -> Iterator[Server]:
    with running(model_of(loaded)) as found:
        yield found
        assert found.said == [], "nothing is wrong for the console"
