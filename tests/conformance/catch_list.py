"""Check → the plugin that it has to catch, and what it has to say. ``python tests/conformance/catch_list.py`` prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from faulty_plugins import plugin as spoiled

from mt_conformance import (
    BaseAdapterConformance,
    BaseCallbackConformance,
    BaseDatasetConformance,
    BaseEncoderConformance,
    BaseEvaluationConformance,
    BaseMetricConformance,
    BaseModelConformance,
    BaseObjectiveConformance,
    BaseOptimizerConformance,
    BasePluginConformance,
    BasePreferenceLossConformance,
    BaseProjectorConformance,
    BaseRewardConformance,
    BaseSamplerConformance,
    BaseScheduleConformance,
    BaseTaskPrintConformance,
    BaseTokenizerConformance,
)


@dataclass(frozen=True)
class FaultyCase:
    """A component of the spoiled plugin, the check that has to fail, and a pattern of its message."""

    base: type[BasePluginConformance]
    check: str
    name: str
    says: str
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def suite(self) -> BasePluginConformance:
        """What its author would have written."""
        kind = type(f"Test_{self.name}", (self.base,), {"plugin": spoiled, "name": self.name, **self.attributes})
        return kind()

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.base.kind or 'any'} {self.name}: {self.check.removeprefix('test_')}"


SCHEDULE, PRINT, TOKENIZER = BaseScheduleConformance, BaseTaskPrintConformance, BaseTokenizerConformance
OBJECTIVE, OPTIMIZER, MODEL = BaseObjectiveConformance, BaseOptimizerConformance, BaseModelConformance
DATASET, CALLBACK, ADAPTER = BaseDatasetConformance, BaseCallbackConformance, BaseAdapterConformance
EVALUATION, METRIC = BaseEvaluationConformance, BaseMetricConformance
PREFERENCE, REWARD = BasePreferenceLossConformance, BaseRewardConformance
SAMPLER = BaseSamplerConformance
ENCODER, PROJECTOR = BaseEncoderConformance, BaseProjectorConformance
GENES = {"contents": (b"A", b"GATTACA", b"GCC"), "broken": (b"",)}
SMALL = {"options": {"rank": 4}}


class SameModel(nn.Module):
    """A reference with other names than the kit's model; ``factor`` times its logits."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        from mt_conformance.tiny_config import TinyConfig
        from mt_conformance.tiny_model import TinyModel

        self.inner = TinyModel(TinyConfig(vocab_size=60, max_seq_len=64))

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        from mt_conformance.forward import rows_of

        return self.factor * self.inner.head(self.inner(rows_of(ids_BT, ids_BT.shape[1])))

    @staticmethod
    def rename_tensors(suite: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Under the model's own names."""
        return {name.removeprefix("inner."): value for name, value in tensors.items()}


def is_check(base: type, name: str) -> bool:
    """Return whether it is a check in this process."""
    return name.startswith("test_") and not hasattr(getattr(base, name), "pytestmark")


def rude_options(suite: Any, folder: Path) -> dict[str, Any]:
    return {}


def listed_file(suite: Any, folder: Path) -> dict[str, Any]:
    (folder / "lines").write_text("a file that is there")
    return {"path": str(folder / "lines")}


CAUGHT = [
    # -------------------------------------------------------------------------------------------------------- encoders
    *(
        FaultyCase(ENCODER, f"test_{check}", name, says, GENES)
        for name, check, says in (
            (
                "uncounted",
                "it_makes_as_many_features_as_were_measured",
                r"of \[2\] features .* as \(1, 4\), and \(2, 4\)",
            ),
            (
                "mixing",
                "an_item_is_the_same_beside_any_others",
                r"features has other ones beside items of .* No item sees",
            ),
            (
                "unreached",
                "the_dummy_is_encoded_and_reaches_every_parameter",
                r"dummy gives long\.weight no finite gradient \(2",
            ),
            (
                "uncounted",
                "the_dummy_is_encoded_and_reaches_every_parameter",
                "the dummy has 1 features, and 2 were said",
            ),
            (
                "looping",
                "what_is_called_does_not_depend_on_the_items",
                "'linear' is called 1 times .* and 2 times for others",
            ),
            ("drawing", "reading_is_a_pure_function_of_what_was_measured", "read again, an item has other arrays"),
            (
                "trusting",
                "reading_is_a_pure_function_of_what_was_measured",
                "content is another than was measured is read",
            ),
            (
                "placed",
                "the_digest_follows_from_the_content_alone",
                "in another row the same content has another digest",
            ),
            ("shallow", "the_digest_follows_from_the_content_alone", "two contents have one digest"),
            (
                "fragile",
                "broken_content_is_a_data_error_and_nothing_else",
                "raised ValueError: .*whatever is no dna is a DataError",
            ),
            ("heavy", "files_are_read_without_torch", "the processor imports torch .* read with numpy"),
            ("undrawn", "the_first_draw_fills_every_parameter", r"leaves linear\.bias without finite values"),
            ("fixed", "it_is_built_without_memory", "on the meta device shift has memory"),
            ("wide", "features_have_the_dtype_of_the_weights", r"in bf16 its features are torch\.float32"),
            ("keeping", "frozen_it_keeps_nothing_for_the_backward", r"it keeps \d+ tensors for a backward"),
        )
    ),
    # ------------------------------------------------------------------------------------------------------ projectors
    *(
        FaultyCase(PROJECTOR, f"test_{check}", name, says)
        for name, check, says in (
            ("generous", "it_makes_as_many_hidden_states_as_it_counts", r"become \(1, 8\), and tokens\(\) says \[2\]"),
            ("mixing", "an_item_is_the_same_beside_any_others", "has other hidden states beside .* No item sees"),
            ("sharing", "an_item_without_features_is_a_data_error", r"of \(0, None\) .* raised ZeroDivisionError"),
            ("heavy", "it_counts_without_torch", r"tokens\(\) imports torch .* count with whole numbers"),
            (
                "looping",
                "what_is_called_does_not_depend_on_the_items",
                "'linear' is called 1 times .* and 2 times for others",
            ),
            ("unreached", "gradients_reach_every_parameter_and_feature", r"gives many\.weight no finite gradient \(2"),
            ("undrawn", "the_first_draw_fills_every_parameter", r"leaves linear\.bias without finite values"),
            ("fixed", "it_is_built_without_memory", "on the meta device shift has memory"),
            ("wide", "hidden_states_have_the_dtype_of_the_weights", r"in bf16 its hidden states are torch\.float32"),
        )
    ),
    # ------------------------------------------------------------------------------------------------------ any plugin
    FaultyCase(
        SCHEDULE,
        "test_hooks_and_components_are_those_of_the_contract",
        "still",
        r"'another-\d+'\] when it was called again",
    ),
    FaultyCase(
        SCHEDULE, "test_every_option_says_what_it_is", "mute", r"options of 'mute' without a description: rate\. Give"
    ),
    FaultyCase(
        SCHEDULE, "test_every_number_has_bounds", "unbounded", r"numbers of 'unbounded' without bounds: rate\. Give"
    ),
    FaultyCase(
        SCHEDULE, "test_help_shows_every_option_on_a_line", "two-lines", r"no line with \.rate .* without line breaks"
    ),
    FaultyCase(
        SCHEDULE,
        "test_a_config_comes_back_from_json_as_it_was",
        "unfaithful",
        "another steps: 5 was written as 4 and read as 4",
    ),
    # ------------------------------------------------------------------------------------------------------- schedules
    FaultyCase(
        SCHEDULE,
        "test_it_is_a_pure_function",
        "remembers",
        r"1\.0 at first, 0\.025 when the updates were asked for backw",
    ),
    FaultyCase(
        SCHEDULE, "test_it_is_a_pure_function", "counts", "update 0 had the factor 1.0 at first, .*keep no counter"
    ),
    FaultyCase(
        SCHEDULE,
        "test_every_factor_is_a_finite_number_and_none_is_negative",
        "negative",
        "update 400 of 40 has the factor nan",
    ),
    FaultyCase(SCHEDULE, "test_some_update_trains", "still", "all 40 updates have the factor 0"),
    FaultyCase(
        SCHEDULE,
        "test_it_equals_its_reference",
        "straight",
        "update 1 has the factor 1.0, and the reference 0.5 .*39 of 40",
        {"reference": lambda suite, total: [1 / (1 + k) for k in range(total)]},
    ),
    # -------------------------------------------------------------------------------------------------------- printers
    FaultyCase(
        PRINT,
        "test_no_records_give_a_line_or_nothing",
        "needs-records",
        "with no records the printer raised IndexError",
    ),
    FaultyCase(
        PRINT,
        "test_figures_that_are_missing_are_left_out",
        "needs-figures",
        "without token_accuracy the printer raised KeyError",
    ),
    FaultyCase(
        PRINT,
        "test_figures_that_are_missing_are_left_out",
        "two-when-missing",
        "record without eval_loss it returned 2 l",
    ),
    FaultyCase(
        PRINT,
        "test_figures_that_are_missing_are_left_out",
        "all-or-none",
        "in the last of two records alone .* KeyError",
    ),
    FaultyCase(
        PRINT,
        "test_it_is_one_line_whatever_the_numbers",
        "returns",
        r"with seven records it returned 2 lines: 'loss\\r'",
    ),
    FaultyCase(PRINT, "test_it_is_one_line_whatever_the_numbers", "two-lines", "it returned 7 lines"),
    FaultyCase(PRINT, "test_it_changes_nothing", "changes", "it changed the records"),
    # ------------------------------------------------------------------------------------------------------ tokenizers
    FaultyCase(
        TOKENIZER, "test_texts_come_back_as_they_were", "lower", r"control characters|came back as .*lossless = False"
    ),
    FaultyCase(
        TOKENIZER, "test_every_id_is_below_its_size", "too-large", r"encode gave \[2\d\d.* from 0 to size - 1 = 199"
    ),
    FaultyCase(TOKENIZER, "test_encode_adds_no_special_token", "begins", r"encode\(''\) has the special ids \[256\]"),
    FaultyCase(
        TOKENIZER,
        "test_special_tokens_give_no_text",
        "shows-specials",
        r"decode shows eos_id \(257\) as text: 'a b<end>'",
    ),
    FaultyCase(
        TOKENIZER,
        "test_what_stands_in_front_of_a_text_are_ids_that_give_no_text",
        "too-large-begin",
        r"begin_ids has \[259\]; ids are int, from 0 to size - 1 = 258",
    ),
    FaultyCase(
        TOKENIZER,
        "test_what_stands_in_front_of_a_text_are_ids_that_give_no_text",
        "shown-begin",
        r"decode shows begin_ids \[65\] as text: 'Aa b'",
    ),
    FaultyCase(
        TOKENIZER,
        "test_any_part_of_a_text_can_be_decoded",
        "strict",
        r"UnicodeDecodeError for the first 1 ids .* U\+FFFD",
    ),
    FaultyCase(
        TOKENIZER,
        "test_offsets_are_places_in_the_text",
        "early",
        r"character \d+ \('.'\) is in the ids, and in no offset",
    ),
    FaultyCase(
        TOKENIZER, "test_offsets_are_places_in_the_text", "shifted", r"offsets \[\(1, 2\)\] are not \(start, end\)"
    ),
    FaultyCase(
        TOKENIZER,
        "test_many_texts_at_once_are_encoded_as_each_alone",
        "hasty",
        "encode_many gives other ids .* spaces at both ends",
    ),
    # ------------------------------------------------------------------------------------------------------ objectives
    FaultyCase(
        OBJECTIVE,
        "test_a_sample_says_which_tokens_are_trained",
        "unmarked",
        r"'ids': 9, 'trained': 8\}; each id needs one mark",
    ),
    FaultyCase(
        OBJECTIVE,
        "test_however_rows_are_cut_into_micro_batches_the_gradient_is_the_same",
        "mean",
        "with one micro-batch for each row the gradient of .* is another .* never a mean over the batch",
    ),
    FaultyCase(
        OBJECTIVE,
        "test_however_rows_are_cut_into_micro_batches_the_gradient_is_the_same",
        "own-count",
        "with one micro-batch for each row the gradient of .* is another",
    ),
    FaultyCase(
        OBJECTIVE,
        "test_packing_rows_changes_no_gradient",
        "whole-rows",
        "with all samples packed into one row the gradient",
    ),
    FaultyCase(
        OBJECTIVE,
        "test_padding_changes_no_gradient",
        "padded",
        "with 17 more places of padding in each row the gradient",
    ),
    FaultyCase(
        OBJECTIVE, "test_positions_that_are_not_trained_have_no_influence", "unmasked", r"\d+ positions without a label"
    ),
    FaultyCase(
        OBJECTIVE,
        "test_the_count_is_known_before_any_forward",
        "miscounts",
        r"count\(batch\) is .*, and loss\(…\)\.token_count",
    ),
    *(
        FaultyCase(OBJECTIVE, check, name, says)
        for check, name, says in [
            (
                "test_a_sample_says_which_tokens_are_trained",
                "short-documents",
                r"documents of \[\d+\] tokens for \d+ ids; they are the lengths",
            ),
            (
                "test_a_sample_says_which_tokens_are_trained",
                "short-values",
                "'margin' has another number of values than there are documents",
            ),
            (
                "test_however_rows_are_cut_into_micro_batches_the_gradient_is_the_same",
                "mean-of-pairs",
                "with one micro-batch for each row the gradient of .* is another .* never a mean over the batch",
            ),
            (
                "test_however_rows_are_cut_into_micro_batches_the_gradient_is_the_same",
                "mean-of-term",
                "with one micro-batch for each row the gradient of .* is another",
            ),
            (
                "test_however_rows_are_cut_into_micro_batches_the_gradient_is_the_same",
                "neighbours",
                "with one micro-batch for each row the gradient of .* is another",
            ),
            (
                "test_positions_that_are_not_trained_have_no_influence",
                "trains-prompts",
                r"\d+ positions without a label",
            ),
            (
                "test_the_count_is_known_before_any_forward",
                "miscounts-term",
                r"count_terms\(batch\) is \{'likelihood': 4\.0\}, and loss\(…\)\.terms have the counts \{'likelihood': \d+\.0\}",
            ),
            (
                "test_the_count_is_known_before_any_forward",
                "renames-term",
                r"count_terms\(batch\) is \{'sft': .*give the same names",
            ),
            (
                "test_its_reference_is_the_model_at_the_first_step",
                "measures-means",
                "with the reference measured with the same weights the gradient of .* is another",
            ),
            (
                "test_its_reference_is_the_model_at_the_first_step",
                "measures-pairs",
                r"measure gives \{'reference': 4\} values, and there are 8 documents and the names \['reference'\]",
            ),
        ]
    ),
    # ------------------------------------------------------------------------------------------------------ optimizers
    FaultyCase(
        OPTIMIZER,
        "test_every_parameter_is_in_exactly_one_group",
        "forgets-some",
        r"split puts model\.layers\.0\.mlp.* into 0 groups",
    ),
    FaultyCase(OPTIMIZER, "test_ten_steps_go_downhill", "uphill", "took it from .* an optimizer goes down"),
    FaultyCase(
        OPTIMIZER, "test_the_rate_of_a_step_is_the_one_in_its_group", "own-rate", "gave the same weights; read group"
    ),
    FaultyCase(
        OPTIMIZER,
        "test_the_weight_decay_is_the_one_in_its_group",
        "keen",
        r"the same weights; read group\['weight_decay'\]",
    ),
    FaultyCase(
        OPTIMIZER, "test_a_parameter_without_a_gradient_is_left_alone", "decays-all", "has no gradient and was changed"
    ),
    FaultyCase(
        OPTIMIZER,
        "test_its_state_comes_back",
        "forgetful",
        r"five more from their state, gave another .* than ten steps\. Keep",
    ),
    FaultyCase(
        OPTIMIZER,
        "test_its_state_comes_back",
        "uncounted",
        "five more from their state, gave another .* than ten steps",
    ),
    FaultyCase(
        OPTIMIZER,
        "test_its_state_comes_back",
        "keeps-text",
        "the state holds phase: str; a checkpoint takes tensors and numbers",
    ),
    FaultyCase(
        OPTIMIZER, "test_an_elementwise_rule_does_not_see_shapes", "sees-shapes", "declare form='whole_parameter'"
    ),
    FaultyCase(
        OPTIMIZER,
        "test_it_equals_its_reference",
        "off",
        r"after ten steps model\.embed_tokens\.weight is another than the reference's by .* Compare the defaults",
        {"reference": lambda suite, parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.8)},
    ),
    # ---------------------------------------------------------------------------------------------------------- models
    FaultyCase(MODEL, "test_the_loss_of_new_weights_is_that_of_guessing", "hot", r"ln V = 4\.094 .* Scale down"),
    FaultyCase(MODEL, "test_later_tokens_never_change_earlier_outputs", "acausal", "the model sees the future"),
    FaultyCase(
        MODEL, "test_documents_in_one_row_never_see_each_other", "mixed", "document 2 of three in each of two rows"
    ),
    FaultyCase(
        MODEL, "test_documents_in_one_row_never_see_each_other", "sociable", "document 1 of three .* or from row to row"
    ),
    *(
        FaultyCase(MODEL, "test_generating_with_a_cache_gives_the_outputs_of_one_forward", name, says)
        for name, says in [
            ("forgetful", "read in pieces of 1, 1, 1, 1 … tokens, the outputs differ"),
            ("late", "read in pieces of 1, 1, 1, 1 … tokens, the outputs differ"),
            ("blind", "read in pieces of 7, 8, 1, 14 … tokens, the outputs differ"),
        ]
    ),
    FaultyCase(
        MODEL,
        "test_a_batch_of_prompts_gives_what_each_gives_alone",
        "padded",
        r"prompt \d of three goes on with .* ragged_batches",
    ),
    FaultyCase(
        MODEL, "test_layers_chained_are_the_model", "own-forward", "one after the other, differ from the whole model"
    ),
    FaultyCase(
        MODEL, "test_one_batch_can_be_learned_by_heart", "deaf", "60 steps of AdamW at 0.01 .* a tenth was expected"
    ),
    FaultyCase(
        MODEL,
        "test_every_parameter_gets_a_gradient",
        "idle",
        r"no gradient reaches blocks\.0\.spare\.weight, blocks\.0\.spare\.bias",
    ),
    FaultyCase(
        MODEL,
        "test_in_half_precision_it_stays_half",
        "wide",
        r"in bfloat16 (it ends in an error|the hidden states are)",
    ),
    FaultyCase(
        MODEL, "test_recomputing_blocks_changes_no_gradient", "stateful", "with activation checkpointing the gradients"
    ),
    FaultyCase(
        MODEL,
        "test_recomputing_blocks_changes_no_gradient",
        "recounting",
        r"the figure 'size' counts .* has to run its blocks by mt_core\.nn\.run_recomputed",
    ),
    FaultyCase(
        MODEL,
        "test_new_weights_follow_from_seed_and_name",
        "careless",
        r"embed\.weight.* differ between two models of the same seed",
    ),
    FaultyCase(MODEL, "test_its_state_comes_back", "buffered", r"the state holds more than them \(seen\)"),
    FaultyCase(
        MODEL,
        "test_it_equals_its_reference",
        "sober",
        r"the logits differ by 5\.0e-01 of the reference's",
        {"reference": lambda suite: SameModel(2.0), "rename_tensors": SameModel.rename_tensors},
    ),
    # -------------------------------------------------------------------------------------------------------- datasets
    FaultyCase(DATASET, "test_every_row_has_an_id_of_its_own", "nameless", "row 0 is .* a mapping with an `id`"),
    FaultyCase(
        DATASET, "test_every_row_has_an_id_of_its_own", "miscounted", r"sources\(\) has 16 rows, and the dataset 12"
    ),
    FaultyCase(
        DATASET, "test_rows_are_the_same_whenever_they_are_asked_for", "moody", "asked for backwards, row 0 is another"
    ),
    FaultyCase(
        DATASET,
        "test_the_order_follows_from_the_seed",
        "unseeded",
        "two runs of one seed have other rows, first in step",
    ),
    FaultyCase(
        DATASET,
        "test_each_epoch_has_an_order_of_its_own",
        "monotonous",
        "and another epoch the same one; .* has to shuffle",
    ),
    FaultyCase(
        DATASET, "test_each_epoch_has_an_order_of_its_own", "drifting", "keep nothing of one epoch for the next"
    ),
    FaultyCase(
        DATASET,
        "test_it_goes_on_exactly_from_every_row",
        "tired",
        r"stopped after row \d of epoch 1 \(from 0\) and resumed",
    ),
    FaultyCase(DATASET, "test_ranks_share_the_rows_without_loss_or_overlap", "selfish", "is not what one reads"),
    FaultyCase(
        DATASET,
        "test_it_goes_on_exactly_from_every_row",
        "amnesiac",
        r"stopped after row \d+ of epoch 0 .* and resumed, the next row is",
    ),
    FaultyCase(
        DATASET,
        "test_processes_that_encode_rows_do_not_change_the_order",
        "process",
        "encoded by two processes, other rows come",
        {"options_in": listed_file},
    ),
    FaultyCase(DATASET, "test_its_splits_and_files_are_there", "listed", r"split='eval'\) returned a list"),
    FaultyCase(
        DATASET,
        "test_its_splits_and_files_are_there",
        "process",
        r"files\(config, 'train'\) names lost\.txt, which is not there",
        {"options": {"path": "lost.txt"}},
    ),
    FaultyCase(
        DATASET,
        "test_a_bad_row_is_reported_with_its_place",
        "rude",
        r"a bad row raised ValueError: no text; raise mt_core\.DataError",
        {"bad_options_in": rude_options},
    ),
    # -------------------------------------------------------------------------------------------------------- adapters
    *(
        FaultyCase(ADAPTER, check, name, says, SMALL)
        for check, name, says in [
            (
                "test_it_begins_as_the_base",
                "hasty",
                "before the first step the output differs .* Begin with an update of",
            ),
            ("test_it_begins_as_the_base", "coy", "declare exact_at_init=True"),
            (
                "test_its_base_is_the_model_of_step_0_where_it_says_so",
                "coy",
                "declares exact_at_init=False, so that its base",
            ),
            (
                "test_its_base_is_the_model_of_step_0_where_it_says_so",
                "thawing",
                r"it trains .*o_proj\.weight.* beside its layers",
            ),
            ("test_its_base_is_the_model_of_step_0_where_it_says_so", "greedy", "after three steps is another model"),
            (
                "test_its_first_values_follow_from_the_seed",
                "moody",
                r"lora_A.* begin with other values in the same run",
            ),
            (
                "test_only_what_it_declares_is_trained",
                "greedy",
                r"qkv_proj\.weight.* does not name them; .* rewrites_base",
            ),
            ("test_every_trained_parameter_gets_a_gradient", "idle", r"no gradient reaches blocks\.0.*spare"),
            ("test_a_few_steps_lower_the_loss", "numb", "twenty steps on one batch took the loss from .* `rate`"),
            ("test_merged_it_gives_the_same_and_unmerging_gives_the_bits_back", "half", "merged, the output differs"),
            (
                "test_merged_it_gives_the_same_and_unmerging_gives_the_bits_back",
                "bold",
                "mergeable=False, and .* merges",
            ),
            (
                "test_merged_it_gives_the_same_and_unmerging_gives_the_bits_back",
                "shy",
                "mergeable=True, and does not merge: it cannot be merged; define delta_weight",
            ),
            (
                "test_merged_it_gives_the_same_and_unmerging_gives_the_bits_back",
                "rough",
                "are others after unmerging",
            ),
            ("test_later_tokens_never_change_earlier_outputs", "leaky", "works on each token by itself"),
            ("test_what_it_saves_gives_the_same_model_again", "forgetful", r"saved_state leaves out blocks\.0.*lora_B"),
            ("test_what_it_saves_gives_the_same_model_again", "counting", "and the same plan, gives another output"),
            ("test_recomputing_blocks_changes_no_gradient", "counting", "with activation checkpointing the gradients"),
            ("test_in_half_precision_it_stays_half", "wide", "in bfloat16 it ends in an error|hidden states are"),
            (
                "test_it_works_on_a_quantized_base_or_is_refused",
                "thawing",
                "trains other parameters .* on_quantized=False",
            ),
        ]
    ),
    # ------------------------------------------------------------------------------------------------------- callbacks
    FaultyCase(
        CALLBACK,
        "test_it_has_methods_for_events_of_the_contract",
        "misspelt",
        "on_steps_end, .* Did you mean 'on_step_end'",
    ),
    FaultyCase(
        CALLBACK,
        "test_every_event_is_called_with_one_context",
        "lonely",
        r"on_step_end\(\) cannot be called with one CallbackContext",
    ),
    FaultyCase(CALLBACK, "test_its_state_is_json_and_comes_back", "opaque", r"state_dict\(\) is not JSON: .*Tensor"),
    # ----------------------------------------------------------------------------------------------------- evaluations
    *(
        FaultyCase(EVALUATION, check, name, says)
        for check, name, says in [
            (
                "test_it_finds_the_same_each_time",
                "counting",
                r"asked again, it has other figures: \{'calls': '2\.0'\}, and at first \{'calls': '1\.0'\}\. Findings follow",
            ),
            (
                "test_it_finds_the_same_each_time",
                "moody",
                r"asked again, it has other rows: .* draw from a generator that",
            ),
            (
                "test_random_generators_are_as_they_were",
                "drawing",
                "the random generator of torch and Python is another. Draw from one of your own",
            ),
            (
                "test_its_findings_can_be_written",
                "misnamed",
                r"ended with ComponentError: 'Accuracy \(%\)' is no name of a figure|'Accuracy \(%\)' is no name of a figure",
            ),
            (
                "test_its_findings_can_be_written",
                "boxed",
                r"group law, figure margin is tensor\(1\.\) \(Tensor\); .* write float",
            ),
            ("test_its_findings_can_be_written", "bare", "it has no figures, so nothing of it goes into the record"),
            ("test_its_findings_can_be_written", "unwritten", r"row 0 of the findings is no JSON .*--predictions"),
            ("test_it_asks_for_what_it_declares", "idle", "it asked the model nothing"),
            (
                "test_it_asks_for_what_it_declares",
                "writing",
                r"it asked for scores and texts, and declares needs=\['scores'\]\.",
            ),
            ("test_a_dry_run_counts_what_it_asks", "dividing", "failed: .*ZeroDivisionError|division by zero"),
            ("test_a_dry_run_counts_what_it_asks", "idle", "without a model it asked for nothing"),
            (
                "test_a_dry_run_counts_what_it_asks",
                "choosing",
                r"without a model it has the figures \['mean'\], and with one \['margin', 'mean'\]",
            ),
        ]
    ),
    # --------------------------------------------------------------------------------------------------------- metrics
    *(
        FaultyCase(METRIC, check, name, says)
        for check, name, says in [
            (
                "test_the_same_predictions_have_the_same_figures",
                "remembers",
                r"asked again, the last one first, the prediction 'the sea' has .* computed in total",
            ),
            (
                "test_the_same_predictions_have_the_same_figures",
                "drifts",
                "the total of the same scores is .*, and was",
            ),
            (
                "test_texts_of_any_kind_have_figures",
                "wordy",
                "the empty prediction '' beside .* raised ZeroDivisionError: .* A model writes anything",
            ),
            ("test_texts_of_any_kind_have_figures", "referring", "without references, .* raised ValueError"),
            ("test_texts_of_any_kind_have_figures", "named", "has a figure 'ROUGE-L'; a name has lower-case letters"),
            (
                "test_totals_are_figures_also_of_one_row_and_of_none",
                "mean",
                r"total of 0 row\(s\) raised ZeroDivisionError: .* no row are numbers as well",
            ),
            (
                "test_totals_are_figures_also_of_one_row_and_of_none",
                "spread",
                r"total of 1 row\(s\) has the figures \['exact'\], and of 4 \['deviation', 'exact'\]",
            ),
            ("test_its_signature_says_how_figures_are_computed", "unsigned", "its signature is ''; write one line"),
            ("test_it_changes_nothing", "changes", "score changed the references or the row"),
            ("test_it_changes_nothing", "sorts", "total changed the scores"),
        ]
    ),
    # -------------------------------------------------------------------------------------------------------- rewards
    *(
        FaultyCase(REWARD, check, name, says)
        for check, name, says in [
            ("test_whatever_a_model_writes_has_a_score_or_none", "fragile", r"score\(\) raised IndexError"),
            (
                "test_whatever_a_model_writes_has_a_score_or_none",
                "lossy",
                r"score\(\) gives \d+ scores; give one for each",
            ),
            ("test_whatever_a_model_writes_has_a_score_or_none", "boundless", "is inf; give a finite number"),
            ("test_whatever_a_model_writes_has_a_score_or_none", "unweighed", "its weight is 'much'; it is a number"),
            ("test_an_answer_scores_the_same_alone_and_again", "tiring", "the second call gives other scores"),
            ("test_an_answer_scores_the_same_alone_and_again", "ranking", "alone the score of .* is another"),
            (
                "test_an_answer_scores_the_same_alone_and_again",
                "queueing",
                "in another order the score of .* is another",
            ),
            ("test_scoring_changes_no_answer", "writing", r"score\(\) changed an answer or its row"),
        ]
    ),
    # ------------------------------------------------------------------------------------------------------- samplers
    *(
        FaultyCase(SAMPLER, check, name, says)
        for check, name, says in [
            ("test_each_prompt_has_an_answer_of_tokens", "vague", "its full_support is 'mostly'; say whether"),
            ("test_each_prompt_has_an_answer_of_tokens", "needy", r"0 prompts: sample\(\) raised IndexError"),
            ("test_each_prompt_has_an_answer_of_tokens", "merging", r"5 prompts: sample\(\) gives 4 answers; give one"),
            ("test_each_prompt_has_an_answer_of_tokens", "endless", r"has 13 tokens, and 12 were asked for"),
            (
                "test_each_prompt_has_an_answer_of_tokens",
                "wordless",
                "has no tokens; one that ends at once has the end",
            ),
            ("test_each_prompt_has_an_answer_of_tokens", "foreign", r"has the ids \[np\.int64.* make each an int"),
            ("test_each_prompt_has_an_answer_of_tokens", "renaming", "ended by 'stopped'; say one of eos, stop,"),
            (
                "test_each_prompt_has_an_answer_of_tokens",
                "claiming",
                "with finish eos, and with no other, the end token",
            ),
            ("test_each_prompt_has_an_answer_of_tokens", "retelling", "the text of an answer is 'answer', and that of"),
            ("test_answers_follow_the_weights", "stale", "after a step of training the likeliest answer to .* Look at"),
            ("test_answers_follow_the_weights", "peeking", r"at first policy\.weights\(\) was begun and not ended"),
            ("test_answers_follow_the_weights", "hoarding", "which is no JSON .*, so the other ranks cannot have it"),
            (
                "test_log_probabilities_are_those_of_the_policy",
                "short",
                r"has \d+ logprobs; give one for each, the end",
            ),
            (
                "test_log_probabilities_are_those_of_the_policy",
                "tepid",
                r"at temperature 0\.5 its logprobs are .* nats",
            ),
            ("test_it_changes_nothing", "trimming", r"sample\(\) changed a prompt"),
            ("test_it_changes_nothing", "drawing", "the random generator of torch is another. Draw from one of your"),
        ]
    ),
    # ---------------------------------------------------------------------------------------------- preference losses
    *(
        FaultyCase(PREFERENCE, check, name, says)
        for check, name, says in [
            ("test_it_says_what_it_needs", "reticent", "its needs_reference is 'yes'; say True or False"),
            ("test_it_says_what_it_needs", "secretive", "its beta is None; say the factor of r"),
            ("test_it_says_what_it_needs", "greedy", r"its nll is -1\.0; say which weight"),
            (
                "test_each_pair_has_a_finite_loss",
                "averaged",
                r"returns shape \(\), and there are 5 pairs; return the loss of each, shape \(5,\)",
            ),
            ("test_the_start_costs_what_it_says", "misstated", r"r = 0 cost 0\.693147, .* known_start says 1\. A run"),
            (
                "test_it_prefers_the_chosen_answer",
                "turned",
                "by the log-probability of chosen answers is 0.05.* the model would learn to prefer",
            ),
            (
                "test_a_pair_does_not_depend_on_others",
                "centred",
                "pair 0 costs 0.693147 alone, and .* beside four others",
            ),
            (
                "test_extreme_log_ratios_are_finite",
                "naive",
                "r_w = -1000 and r_l = 0 its losses are inf.*; write log σ\\(x\\) as logsigmoid",
            ),
            (
                "test_extreme_log_ratios_are_finite",
                "branching",
                r"r_w = -1000 and r_l = 0 its gradient .* is nan.*; a torch\.where whose other branch",
            ),
            ("test_it_changes_nothing", "lengthening", "it changed chosen_lengths of the pairs in place"),
            ("test_it_changes_nothing", "moving", "the same pairs cost .* and then .*; keep no state"),
        ]
    ),
]
"""Checks in this process."""

CAUGHT += [
    FaultyCase(base, f"test_{check}", name, says, attributes)
    for base, check, name, says, attributes in [
        (ADAPTER, "its_dropout_is_of_training_alone", "restless", "two forwards in evaluation differ", SMALL),
        (ADAPTER, "its_dropout_is_of_training_alone", "sparing", "in training are equal: the option is ignored", SMALL),
        (SCHEDULE, "a_run_of_few_updates_has_factors", "hasty", r"1 update\(s\) it raised ZeroDivisionError", {}),
        (SCHEDULE, "some_update_trains", "rates", r"the highest factor is 0\.0003, .* give factors, not rates", {}),
        (
            SCHEDULE,
            "every_option_changes_something",
            "deaf",
            r"with power=2\.0 as with 1\.0: it ignores the option",
            {},
        ),
        (OPTIMIZER, "a_rate_of_0_changes_nothing", "decays-all", "at a rate of 0 changed .* weight decay as well", {}),
        (OPTIMIZER, "the_decay_of_vectors_is_0", "even", r"norm\.weight, a vector, a weight decay of 0\.5", {}),
        (OPTIMIZER, "the_weight_decay_is_the_one_in_its_group", "swelling", "decay makes weights smaller", {}),
        (OPTIMIZER, "state_begins_with_the_first_step", "early", "a step raised KeyError: .* in its first step", {}),
        (OPTIMIZER, "ten_steps_go_downhill", "first-group", r"did not change .*norm\.weight; a step updates every", {}),
        (
            METRIC,
            "the_total_is_of_all_rows_alike",
            "newest",
            "in another order, the total has exact = 1, and 0 before",
            {},
        ),
        (
            METRIC,
            "totals_are_figures_also_of_one_row_and_of_none",
            "hoards",
            "keep nothing of one total for the next",
            {},
        ),
        (
            PREFERENCE,
            "it_reads_the_reference_where_it_needs_one",
            "aloof",
            "with another reference pairs cost the same",
            {},
        ),
        (SAMPLER, "draws_follow_the_seed", "fixed", "with the seeds 3 and 4 all answers are the same", {}),
        (SAMPLER, "draws_follow_the_seed", "copying", "prompts that occur twice have the same answer", {}),
        (
            DATASET,
            "rows_are_the_same_in_a_process_with_other_hashes",
            "hashing",
            "in another process row 0 is another",
            {},
        ),
        (
            DATASET,
            "every_row_has_an_id_of_its_own",
            "selfish",
            "has 12 rows, and options_in writes 13",
            {"row_count": 13},
        ),
        (
            OBJECTIVE,
            "a_row_is_encoded_the_same_each_time",
            "wavering",
            "encoded again, .* a sample follows from its row",
            {},
        ),
        (OBJECTIVE, "labels_are_the_tokens_that_come_next", "shifting", r"row 0: place \d+ has the label", {}),
        (
            OBJECTIVE,
            "figures_are_sums_and_counts",
            "averaging",
            "the figure 'width' is .* and no mean over a batch",
            {},
        ),
        (OBJECTIVE, "in_half_precision_it_has_a_loss", "widening", "in bfloat16 it ends in an error", {}),
        (REWARD, "an_answer_scores_the_same_alone_and_again", "alike", "no check can tell them apart; set `texts`", {}),
        (REWARD, "an_answer_scores_the_same_alone_and_again", "first-row", "alone the score of .* is another", {}),
        (ENCODER, "the_digest_follows_from_the_content_alone", "measuring", "has the digest of another content", GENES),
        (PRINT, "it_changes_nothing", "hoards", "from a printer that has printed others before", {}),
    ]
]
"""Mistakes that authors make, found by changing plugins one line at a time."""

EQUAL = [
    *(FaultyCase(ENCODER, name, "sober", "", GENES) for name in vars(ENCODER) if name.startswith("test_")),
    *(FaultyCase(PROJECTOR, name, "sober", "") for name in vars(PROJECTOR) if name.startswith("test_")),
    FaultyCase(
        SCHEDULE, "test_it_equals_its_reference", "straight", "", {"reference": lambda suite, total: [1.0] * total}
    ),
    FaultyCase(
        OPTIMIZER,
        "test_it_equals_its_reference",
        "off",
        "",
        {"reference": lambda suite, parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.9)},
    ),
    FaultyCase(
        MODEL,
        "test_it_equals_its_reference",
        "sober",
        "",
        {"reference": lambda suite: SameModel(1.0), "rename_tensors": SameModel.rename_tensors},
    ),
    *(
        FaultyCase(base, name, fine, "")
        for base, fine in (
            (EVALUATION, "sober"),
            (METRIC, "same"),
            (PREFERENCE, "plain"),
            (REWARD, "just"),
            (SAMPLER, "faithful"),
            (OBJECTIVE, "pairs"),
        )
        for name in vars(base)
        if is_check(base, name)
    ),
]
"""Nothing is wrong with these; where a check has a reference it is the right one."""

LAUNCHED = [
    FaultyCase(
        OPTIMIZER,
        "test_every_declared_layout_trains_as_one_process_does",
        "sees-shapes",
        r"with zero3, loss of step \d is .* take zero3 out",
    ),
    FaultyCase(OPTIMIZER, "test_a_resumed_run_equals_one_that_was_not_stopped", "forgetful", "step 4 has loss"),
    FaultyCase(
        CALLBACK,
        "test_it_runs_on_every_declared_layout",
        "local",
        r"two processes with zero1 failed .*(?s:.*)a slice is shorter",
    ),
    FaultyCase(
        CALLBACK, "test_a_resumed_run_equals_one_that_was_not_stopped", "amnesiac", "of step 2, step 4 has loss"
    ),
    FaultyCase(
        EVALUATION,
        "test_every_layout_gives_the_figures_of_one_process",
        "ranked",
        r"with zero0, eval_ranked_margin is .*, and .* on one process \(allowed: 0\.0001\)\. An evaluation has no rank",
    ),
    FaultyCase(
        CALLBACK,
        "test_an_exception_inside_is_reported_with_its_name_on_all_ranks",
        "swallows",
        "ended rank 0 with no error at all; .*Let exceptions through",
    ),
]
"""Checks of what came of a launch."""

TRAINED = [
    *(FaultyCase(CALLBACK, bad.check, "quiet", "") for bad in LAUNCHED if bad.base is CALLBACK),
    *(FaultyCase(OPTIMIZER, bad.check, "off", "") for bad in LAUNCHED if bad.base is OPTIMIZER),
    *(FaultyCase(EVALUATION, bad.check, "sober", "") for bad in LAUNCHED if bad.base is EVALUATION),
]
"""The same checks of two without a fault."""

ALONE = {"test_importing_it_takes_milliseconds_and_loads_nothing_heavy"}
"""Checks with plugins of their own."""


def checks() -> Iterator[tuple[str, str]]:
    """Every check of the kit: the class that defines it, and its name."""
    bases = {each.base for each in CAUGHT}
    for base in bases:
        for kind in base.__mro__:
            yield from ((kind.__name__, name) for name in vars(kind) if name.startswith("test_"))


if __name__ == "__main__":
    print("\n".join(each.title for each in [*CAUGHT, *LAUNCHED]))
