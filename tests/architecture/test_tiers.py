"""Lists of tests by when they run name what exists, so that nothing is left out, or moved to the night, by a name that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiers

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


@pytest.mark.parametrize("name", [*tiers.LONGEST, *tiers.LONG, *tiers.NIGHT])
def test_what_a_list_names_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert (TESTS / path).exists()
    if test:
        source = (TESTS / path).read_text(encoding="utf-8")
        first = re.escape(
            test.partition("[")[0].partition("::")[0]
        )  # of a class, which inherits from the kit, its name
        assert re.search(rf"^(def|class) {first}", source, re.MULTILINE)


def test_pages_and_plugins_that_lists_name_exist() -> None:
    pages = [*tiers.PAGES_OF_EACH_CHANGE, *(f"docs/{page}.md" for page in tiers.PAGES_OF_EACH_NIGHT)]
    plugins = [*tiers.READMES_OF_EACH_NIGHT, *tiers.PLUGINS_OF_EACH_CHANGE]
    assert [name for name in pages if not (ROOT / name).is_file()] == []
    assert [name for name in plugins if not (ROOT / "plugins" / name).is_dir()] == []


@pytest.mark.parametrize(
    ("test", "mark"),
    [
        ("tests/core/nn/test_attention.py::test_any", None),
        (f"tests/{tiers.PAGES}::test_a_page_can_be_followed[docs/start.md]", None),
        (f"tests/{tiers.PAGES}::test_a_page_can_be_followed[docs/serve.md]", "long"),
        (f"tests/{tiers.PAGES}::test_a_page_can_be_followed[docs/search.md]", "night"),
        (f"tests/{tiers.ALONE_TESTS}::test_it_is_all_that_is_listed[llama]", "long"),
        (f"tests/{tiers.ALONE_TESTS}::test_it_is_all_that_is_listed[phi]", "night"),
    ],
)
def test_a_test_runs_always_before_a_change_or_at_night(test: str, mark: str | None) -> None:
    assert tiers.tier(test) == mark
