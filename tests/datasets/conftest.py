"""Small valid files of each format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for dataset_files, which test_fuzz also reads in processes of its own

from dataset_files import FORMATS


@pytest.fixture(params=FORMATS)
def dataset_case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, dict[str, Any]]:
    """(dataset, file, options) of each format in turn."""
    name, file, content, options = FORMATS[request.param]
    (tmp_path / file).write_bytes(content())
    return name, tmp_path / file, options
