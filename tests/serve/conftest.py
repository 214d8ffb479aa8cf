"""One server for most tests: a random model of bytes, eight rows at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mt_train import LoadedModel

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from served import Server


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    """A random model of bytes with a context of 128 tokens, in fp32."""
    from served import LatinTokenizer, twins  # here: it needs a family, which tests/alone has not

    tokenizer = LatinTokenizer()
    return LoadedModel(twins(tokenizer.size)[0], tokenizer, 128, (tokenizer.eos_id,))


@pytest.fixture(scope="session")
def server(loaded: LoadedModel) -> Iterator[Server]:
    from served import model_of, running

    with running(model_of(loaded)) as found:
        yield found
        assert found.said == [], "nothing is wrong for the console"
