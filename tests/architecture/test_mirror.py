"""A module of the core has its test at the same path below tests/core, or stands here with the tests that it has."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "core/src/mt_core"

ELSEWHERE = {
    "adapters/base.py": "tests/adapters/test_conformance.py",
    "adapters/config.py": "tests/core/adapters/test_targets.py",
    "adapters/linear.py": "tests/train/adapters/test_several.py",
    "adapters/lora.py": "tests/adapters/test_lora.py",
    "cli/plugins_new.py": "tests/core/scaffold/test_distribution.py",
    "cli/plugins_report.py": "tests/core/cli/test_plugins.py",
    "cli/plugins_text.py": "tests/core/cli/test_plugins.py",
    "command.py": "tests/core/test_deprecation.py",
    "components.py": "tests/core/plugins/test_messages.py",
    "config/base.py": "tests/train/config/test_nothing.py",
    "config/experts.py": "tests/core/nn/test_experts.py",
    "data/media_parts.py": "tests/train/data/media/test_marks.py",
    "config/decoder.py": "tests/llama/test_variants.py",
    "config/rope.py": "tests/core/nn/test_rotary.py",
    "data/tools.py": "tests/core/data/test_shapes.py",
    "data/turns.py": "tests/core/data/test_shapes.py",
    "events.py": "tests/train/assemble/test_callbacks.py",
    "files/arrays.py": "tests/core/files/test_sources.py",
    "files/compressed.py": "tests/core/files/test_sources.py",
    "files/config.py": "tests/core/files/test_sources.py",
    "files/json_rows.py": "tests/core/files/test_sources.py",
    "files/native.py": "tests/faults/test_bad_rows.py",
    "files/paths.py": "tests/core/files/test_sources.py",
    "files/spans.py": "tests/core/files/test_sources.py",
    "files/strict_json.py": "tests/faults/test_bad_rows.py",
    "files/writing.py": "tests/core/tracking/test_appender.py",
    "hookspecs.py": "tests/architecture/test_guards.py",
    "lazy.py": "tests/architecture/test_guards.py",
    "model_protocols.py": "tests/conformance/test_kit.py",
    "nn/batch.py": "tests/core/nn/test_collation.py",
    "nn/blocks.py": "tests/core/nn/test_attention.py",
    "nn/compilation.py": "tests/train/engine/test_compilation.py",
    "nn/context.py": "tests/core/nn/test_attention.py",
    "nn/exchange.py": "tests/train/engine/test_experts.py",
    "nn/objective.py": "tests/core/nn/test_collation.py",
    "nn/sinks.py": "tests/core/nn/test_attention.py",
    "nn/tiles.py": "tests/train/engine/test_tiling.py",
    "nn/media.py": "tests/train/engine/test_media_inputs.py",
    "nn/router.py": "tests/core/nn/test_experts.py",
    "nn/scores.py": "tests/callbacks/test_printers.py",
    "plugins/compatibility.py": "tests/core/plugins/test_deprecation.py",
    "plugins/loading.py": "tests/core/plugins/test_host.py",
    "plugins/lock_file.py": "tests/core/plugins/test_lock.py",
    "plugins/metadata.py": "tests/core/plugins/test_host.py",
    "protocols.py": "tests/conformance/test_kit.py",
    "rows.py": "tests/train/data/test_items.py",
    "step_context.py": "tests/families/test_counting.py",
    "testing.py": "tests/core/test_deprecation.py",
    "version.py": "tests/core/cli/test_plugins.py",
    "warmup.py": "tests/optim/test_schedules.py",
    "weights/files.py": "tests/llama/test_formats.py",
    "weights/folder.py": "tests/llama/test_formats.py",
    "weights/rope_json.py": "tests/core/weights/test_config_json.py",
    "weights/whole.py": "tests/multimodal/test_llava_folders.py",
}
"""Module → the test of what it is a part of: one that is tested through its users, or with a module that it was cut from."""


def test_a_module_of_the_core_has_its_test_where_a_reader_looks() -> None:
    modules = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if path.name != "__init__.py"}
    mirrored = {name for name in modules if (ROOT / "tests/core" / name).with_name(f"test_{Path(name).name}").is_file()}
    assert sorted(modules - mirrored - ELSEWHERE.keys()) == [], (
        "write tests/core/…/test_NAME.py, or say where the test is"
    )
    assert sorted(ELSEWHERE.keys() & mirrored) == [], "these have their own test by now"
    assert sorted(ELSEWHERE.keys() - modules) == [], "these are gone"
    assert sorted(test for test in ELSEWHERE.values() if not (ROOT / test).is_file()) == []
