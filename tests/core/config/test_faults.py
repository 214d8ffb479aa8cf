"""Mistakes in a config, as a person can act on them."""

from __future__ import annotations

import pytest

from mt_core import ConfigError, load_config


def test_an_option_of_what_takes_none_says_so_and_where_else_it_may_belong() -> None:
    with pytest.raises(
        ConfigError, match=r"tokenizer\.path: no such key\. It takes no options: .* another tokenizer\."
    ):
        load_config({"model": "llama", "tokenizer": {"name": "byte", "path": "somewhere"}})
