"""Tests by when they run: always, before a change lands (``long``), or each night (``night``); and in which order workers take them.

Times are those of two cores: ``pytest`` stays below 12 minutes and ``.ci/run`` below 25. What is moved to the night has kin that runs
before a change lands: other layouts, other plugins or pages of the same kind, or the same property without its process.
"""

from __future__ import annotations

TOGETHER = ("core/plugins",)
"""Folders whose files share what takes long to set up: one worker of ``pytest -n`` takes all of them."""

ALONE_TESTS, PAGES = "alone/test_alone.py", "integration/test_docs.py"
"""Pages have nothing in common, so that workers share them one by one; plugins that are tested alone share what takes long to set up."""

LONGEST = (
    "train/engine/test_layouts.py",
    "alignment/test_layouts.py",
    "adapters/test_layouts.py",
    ALONE_TESTS,
    "integration/test_first_run.py",
    "core/plugins",
    PAGES,
    "integration/test_recipes.py",
    "alignment/test_toy.py",
    "train/engine/test_media_layouts.py",
    "train/engine/test_experts.py",
    "train/cli/test_supervisor.py",
    "train/engine/test_compiled_layouts.py",
    "train/assemble/test_merging.py",
    "train/engine/test_graph_attention.py",
    "train/engine/test_masters.py",
    "huggingface/test_layouts.py",
    "adapters/test_conformance.py",
    "integration/test_new_plugins.py",
    "integration/test_scale_out.py",
    "optim/test_layouts.py",
    "families/test_families.py",
    "train/engine/test_resume.py",
    "train/data/test_remote_cache.py",
    "train/engine/test_node_group.py",
    "train/evaluate/test_subject.py",
    "train/cli/test_stopping.py",
    "faults/test_processes.py",
    "faults/test_shared_streams.py",
    "train/adapters/test_layouts.py",
    "search/test_process.py",
    "alone/test_wheels.py",
    "integration/test_hello_adapter_wheel.py",
    "examples/test_hello_plugin.py",
    "train/planning/test_memory.py",
    "integration/test_users_console.py",
    "train/plugins/test_hub.py",
    "conformance/test_catch_list.py",
    "train/generation/test_decoder.py",
    "callbacks/test_averaging.py",
    "docs/test_site.py",
    "callbacks/test_resume.py",
    "tools/convert/test_export_classics.py",
    "quantizers/test_layouts.py",
    "train/assemble/test_load.py",
    "train/assemble/test_batch_size.py",
    "search/test_searching.py",
    "train/engine/test_gathering.py",
    "train/data/templates/test_templates.py",
    "callbacks/test_spikes.py",
    "train/cli/test_pipeline.py",
    "evals/test_metrics.py",
    "train/cli/test_resume.py",
    "train/engine/test_layout_suggestion.py",
    "integration/test_hello_plugin_wheel.py",
    "evals/test_harness_requests.py",
    "faults/test_canaries.py",
    "tools/convert/test_export.py",
    "faults/test_mutations.py",
    "faults/test_bad_rows.py",
    "train/checkpoint/test_crashes.py",
)
"""Files and folders that take longest, in that order: what is begun last should be short. All others follow as they are collected."""

PAGES_OF_EACH_CHANGE = (
    *("README.md", "docs/README.md", "docs/start.md", "docs/finetune.md", "docs/preferences.md", "docs/generate.md"),
    *("docs/evaluations.md", "docs/from-trainer.md", "docs/python.md", "plugins/llama/README.md"),
)
"""Pages that plain ``pytest`` follows: the first ones, and one of a plugin."""

LONG = (
    f"{PAGES}::test_a_page_can_be_followed",
    ALONE_TESTS,
    "alone/test_wheels.py",
    "adapters/test_conformance.py",
    "adapters/test_layouts.py",
    "adapters/test_saved.py",
    "adapters/test_views.py",
    *(f"alignment/test_{name}layouts.py" for name in ("", "grpo_", "kin_", "online_", "ppo_")),
    "alignment/test_commands.py",
    "callbacks/test_averaging.py",
    "callbacks/test_corruption.py",
    "callbacks/test_resume.py",
    "callbacks/test_spikes.py",
    "conformance/test_catch_list.py",
    "core/plugins/test_command.py",
    "distillation/test_layouts.py",
    "docs/test_site.py",
    *(f"faults/test_{name}.py" for name in ("canaries", "endings", "failing_disk", "kills", "mutations", "processes")),
    *(f"faults/test_{name}.py" for name in ("shared_folder", "shared_streams", "signals")),
    "families/test_counting.py",
    "families/test_families.py",
    "huggingface/test_commands.py",
    "huggingface/test_layouts.py",
    *(
        f"integration/test_{name}.py"
        for name in ("first_run", "hello_adapter_wheel", "hello_plugin_wheel", "new_plugins")
    ),
    *(f"integration/test_{name}.py" for name in ("recipes", "scale_out", "users_console")),
    "multimodal/test_feature_store.py",
    "optim/test_layouts.py",
    "optim/test_runs.py",
    "quantizers/test_layouts.py",
    "search/test_process.py",
    "search/test_searching.py",
    "standard/tokenizers/test_native.py",
    "test_forked_starts.py",
    "tools/convert/gguf/test_writer.py",
    "tools/convert/test_export_as_lora.py",
    "tools/convert/test_export_classics.py",
    "tools/convert/test_publish.py",
    "train/adapters/test_layouts.py",
    "tools/convert/test_publish.py::test_whichever_request_fails",
    "train/adapters/test_saved_layouts.py",
    "train/assemble/test_batch_size.py",
    "train/assemble/test_merging.py",
    "train/assemble/test_places.py",
    "train/checkpoint/test_lock.py",
    "train/cli/test_pipeline.py",
    "train/cli/test_resume.py",
    "train/cli/test_stopping.py",
    "train/cli/test_supervisor.py",
    "train/config/test_arguments.py",
    "train/data/test_cache.py",
    *(
        f"train/engine/test_{name}.py"
        for name in ("compiled_layouts", "experts", "gathering", "graph_attention", "masters")
    ),
    *(f"train/engine/test_{name}.py" for name in ("media_layouts", "node_group", "resume", "layout_suggestion")),
    "train/evaluate/test_subject.py",
    "train/planning/test_memory.py",
    "train/plugins/test_hub.py",
    "train/test_api.py",
    "trackers/test_services.py",
    "vllm_server",
)
"""Where the ids of tests begin that are left to ``.ci/run``: two thirds of the time of all that it runs."""

PAGES_OF_EACH_NIGHT = (
    *("adapters", "add_a_model", "board", "callbacks", "convert", "data", "devices", "distillation", "dna"),
    *(
        "export",
        "harness",
        "images",
        "memory",
        "mixtures",
        "resume",
        "scale_out",
        "search",
        "testing_a_plugin",
        "tutorial",
    ),
    *("write/encoder", "write/evaluation"),
)
READMES_OF_EACH_NIGHT = (
    *("deepseek", "gemma", "glm", "gpt-oss", "mistral", "olmo", "phi", "quantizers", "qwen", "smollm", "trackers"),
)
PLUGINS_OF_EACH_CHANGE = ("adapters", "llama", "serve")

NIGHT = (
    "adapters/test_conformance.py::TestAdapters::test_it_works_on_a_quantized_base",
    "adapters/test_conformance.py::TestAdapters::test_its_base_is_the_model_of_step_0",
    "adapters/test_conformance.py::TestAdapters::test_a_few_steps_lower_the_loss",
    "adapters/test_views.py::test_the_base_is_the_model_of_step_0",
    "alignment/test_grpo.py::test_the_smallest_model_learns_to_write_a_letter",
    "alignment/test_kin_layouts.py",
    "alignment/test_online_layouts.py",
    *(f"{PAGES}::test_a_page_can_be_followed[docs/{page}.md]" for page in PAGES_OF_EACH_NIGHT),
    *(f"{PAGES}::test_a_page_can_be_followed[plugins/{name}/README.md]" for name in READMES_OF_EACH_NIGHT),
    "alone/test_wheels.py::test_the_kit_checks_an_adapter",
    "alignment/test_toy.py::test_dpo_learns_which_answers_are_better",
    "alignment/test_online.py::test_the_smallest_model_learns_to_write_a_letter",
    "callbacks/test_averaging.py::test_in_half_precision_the_average_is_of_the_fp32_masters",
    "callbacks/test_averaging.py::test_the_average_is_the_same_at_every_zero_stage",
    "callbacks/test_averaging.py::test_a_run_that_is_resumed_for_longer_evaluates",
    "callbacks/test_corruption.py::test_one_flipped_bit_ends_the_run",
    "callbacks/test_repetition.py::test_at_every_zero_stage",
    "conformance/test_catch_list.py::test_a_spoiled_run_is_caught",
    "conformance/test_catch_list.py::test_a_run_without_a_fault_passes",
    "docs/test_site.py::test_each_link_anchor_and_image_of_the_site_is_there",
    "docs/test_site.py::test_the_site_loads_nothing_from_elsewhere",
    "docs/test_site.py::test_code_is_shown_as_code_and_tables_as_tables",
    "faults/test_canaries.py::test_no_canary_sings",
    "faults/test_failing_disk.py",
    "faults/test_kills.py",
    "faults/test_mutations.py::test_thirty_damaged_runs_are_found_by_the_command",
    "faults/test_processes.py::test_processes_that_are_stopped_or_hang",
    "faults/test_shared_streams.py::test_a_signal_while_a_block_is_exchanged",
    "faults/test_signals.py",
    "integration/test_first_run.py::test_a_quarter_of_the_first_run_learns_more",
    "integration/test_first_run.py::test_the_run_folder_is_complete",
    "integration/test_first_run.py::test_it_says_what_it_trained_on",
    "integration/test_first_run.py::test_a_resumed_command_writes",
    "integration/test_hello_plugin_wheel.py::test_its_loss_falls_in_fifty_steps",
    "integration/test_scale_out.py::test_the_slurm_script_trains_and_queues",
    "integration/test_scale_out.py::test_the_slurm_script_goes_on_with_the_nodes",
    "integration/test_scale_out.py::test_the_slurm_script_says_that_no_node_is_left",
    "integration/test_users_console.py",
    "search/test_process.py::test_a_search_that_was_stopped_goes_on",
    "standard/tokenizers/test_native.py::test_a_hostile_file_of_each_kind",
    "tools/convert/test_export_classics.py::test_what_peft_wrote",
    "train/adapters/test_saved_layouts.py",
    "train/data/test_cache.py::test_any_damage_of_any_file",
    "train/engine/test_graph_attention.py::test_inductor_is_no_further_from_fp64",
    "train/engine/test_processes.py::test_memory_freed_by_one_step",
    "train/planning/test_traffic.py",
    "train/engine/test_layout_suggestion.py::test_every_layout_of_the_grid",
    "train/engine/test_node_group.py::test_only_ranks_of_one_machine_share",
    "train/engine/test_resume.py::test_a_run_goes_on_after_a_rank_was_killed_bit_for_bit",
)
"""Where the ids of tests begin that run each night (``.ci/run --night``), beside those that say so themselves."""


_ALWAYS = frozenset(f"{PAGES}::test_a_page_can_be_followed[{page}]" for page in PAGES_OF_EACH_CHANGE)


def tier(nodeid: str) -> str | None:
    """Return the mark of a test by its id: ``long``, ``night``, or none."""
    name = nodeid.removeprefix("tests/")
    if name.startswith(NIGHT) or _is_alone_at_night(name):
        return "night"
    if name.startswith(LONG) and name not in _ALWAYS:
        return "long"
    return None


def _is_alone_at_night(name: str) -> bool:
    """Return whether it tries a plugin alone that is tried so at night only."""
    path, _, test = name.partition("::")
    return path == ALONE_TESTS and test.partition("[")[2].removesuffix("]") not in PLUGINS_OF_EACH_CHANGE
