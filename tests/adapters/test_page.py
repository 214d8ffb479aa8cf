"""docs/adapters.md says what the adapters declare."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from adapter_table import PAGE, page


def test_the_table_on_the_page_is_what_adapters_declare() -> None:
    assert PAGE.read_text() == page(), "run python tests/adapters/adapter_table.py"
