"""Options of peft's ``LoraConfig`` and of its other methods."""

from __future__ import annotations

_LOW_RANK = "; with --adapter lora or another of low rank"
_SINGULAR = "; with --adapter adalora"

PEFT = {
    f"--adapter.rank{_LOW_RANK}": "r lora_r",
    f"--adapter.targets{_LOW_RANK}": "target_modules lora_target_modules target_regex",
    f"--adapter.targets{_LOW_RANK}; as in '[model.layers.3.*]'": "layers_to_transform layers_pattern",
    "--adapter.targets; experts are projections under an adapter, which patterns name": "target_parameters",
    f"--adapter.exclude{_LOW_RANK}": "exclude_modules",
    f"--adapter.ranks or --adapter.alphas{_LOW_RANK}": "rank_pattern alpha_pattern",
    "--adapter; pissa, olora, loftq, eva, lora-ga and others are adapters": "init_lora_weights init_weights peft_type",
    "--adapter loftq": "loftq_config",
    "--adapter eva": "eva_config",
    "--adapter lora-ga; its gradients come from --adapter.probe-steps": "lora_ga_config",
    f"--adapter.target-rank{_SINGULAR}": "target_r adalora_target_r",
    f"--adapter.rank{_SINGULAR}": "init_r adalora_init_r",
    f"--adapter.initial-ratio{_SINGULAR}; a share of the run": "tinit adalora_tinit",
    f"--adapter.final-ratio{_SINGULAR}; a share of the run": "tfinal adalora_tfinal",
    f"--adapter.every-steps{_SINGULAR}": "deltaT adalora_deltaT",
    f"--adapter.orthogonality{_SINGULAR}": "orth_reg_weight adalora_orth_reg_weight",
    f"--adapter.sensitivity-decay{_SINGULAR}": "adalora_beta1",
    f"--adapter.uncertainty-decay{_SINGULAR}": "adalora_beta2",
    "--adapter.projection-seed; with --adapter vera or randlora": "projection_prng_key vera_projection_prng_key",
    "--adapter.d-initial; with --adapter vera": "d_initial vera_d_initial",
    "--adapter.block-size; with --adapter oft": "oft_block_size",
    "--adapter.block-size; with --adapter boft": "boft_block_size",
    "--adapter.blocks; with --adapter boft": "boft_block_num",
    "--adapter.factors; with --adapter boft": "boft_n_butterfly_factor",
    "--adapter.feedforward; with --adapter ia3": "feedforward_modules",
    "--train.enable; patterns of parameters": "modules_to_save",
    "--train.enable; biases by patterns, such as '[*.bias]', as far as the model has them": "bias",
    "without a counterpart; the embedding is trained as a whole, by --train.enable '[*embed_tokens*]'": (
        "trainable_token_indices peft_trainable_token_indices"
    ),
    "without a counterpart; B has no bias": "lora_bias",
    "without a counterpart; blocks are not repeated": "layer_replication peft_layer_replication",
    "without a counterpart; no adapter does this": (
        "corda_config velora_config monteclora_config arrow_config kasa_config use_bdlora"
        " alora_invocation_tokens use_qalora qalora_group_size boft_dropout"
        " num_virtual_tokens prompt_tuning_init prompt_tuning_init_text prefix_projection encoder_hidden_size"
    ),
    "not needed; tied weights stay tied": "ensure_weight_tying peft_ensure_weight_tying",
    "not needed": (
        "task_type auto_mapping peft_version base_model_name_or_path inference_mode fan_in_fan_out lora_fan_in_fan_out"
        " megatron_config megatron_core runtime_config init_ia3_weights save_projection total_step"
    ),
}
SHARED = {
    f"--adapter.alpha{_LOW_RANK}": "lora_alpha",
    f"--adapter.dropout{_LOW_RANK}": "lora_dropout",
    f"--adapter.rslora{_LOW_RANK}": "use_rslora",
    "--adapter dora": "use_dora",
}
"""Options that LLaMA-Factory has by the same names."""
