"""Files of a folder that have others beside them."""

from __future__ import annotations

import pytest
from dataset_files import open_dataset

from mt_core import DataError


@pytest.mark.parametrize("name", ["mds", "megatron"])
@pytest.mark.parametrize("path", ["~nobody-of-that-name/x", "x" * 5000])
def test_a_path_that_can_be_no_folder_is_named(name: str, path: str) -> None:
    with pytest.raises(DataError, match=r"does not exist|name too long"):
        open_dataset(name, path=path)
