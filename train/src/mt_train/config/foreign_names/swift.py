"""Options of ms-swift: arguments of ``swift sft``, ``swift pt`` and ``swift rlhf``."""

from __future__ import annotations

_ROLLOUT = "; with --objective grpo or another that generates"

SWIFT = {
    "--model; by default the one that config.json names": "model_type model_id_or_path",
    "--adapter": "train_type tuner_type sft_type",
    "--adapter.weights, or --model.adapters for those before the last": "adapters",
    "--adapter.fp32": "lora_dtype",
    "--adapter lora-plus; with --adapter.ratio": "lorap_lr_ratio",
    "--adapter lora-ga; its gradients are those of --adapter.probe-steps": "lora_ga_batch_size lora_ga_iters lora_ga_max_length",
    "--adapter lora-ga; its lengths are --adapter.form and --adapter.gamma": "lora_ga_*",
    "--adapter.rank; with --adapter vera": "vera_rank",
    "--adapter.dropout; with --adapter vera": "vera_dropout",
    "--train.disable; patterns of parameters": "freeze_parameters freeze_parameters_regex freeze_llm freeze_vit freeze_aligner",
    "--train.enable; patterns of parameters": "trainable_parameters trainable_parameters_regex",
    "--adapter freeze; with --adapter.blocks": "freeze_parameters_ratio",
    "--quantizer; nf4, fp4 or int8": "quant_method quant_bits",
    "--data.eval; a share, rows or a path": "split_dataset_ratio val_dataset",
    "--data.columns; as in '{response: answer}', ours before theirs": "columns",
    "--data.cache": "cached_dataset cached_val_dataset load_from_cache_file lazy_tokenize",
    "--data.shuffle": "dataset_shuffle train_dataloader_shuffle",
    "--data.shuffle-buffer": "shuffle_buffer_size",
    "--data.workers": "packing_num_proc",
    "--data.truncation; delete is drop": "truncation_strategy",
    "--data.train-on; assistant, last or all": "loss_scale",
    "--data.template": "use_chat_template",
    "--data.system, and `mt-generate --system`": "system",
    "--dataset; names of data sets are components, and files are --dataset.path": "custom_dataset_info",
    "--dataset concat; with --dataset.mix": "interleave_prob",
    "--dataset.until; with --dataset concat": "stopping_strategy",
    "--train.sequence-len": "max_model_len packing_length",
    "--train.attention": "attn_impl",
    "--train.activation-checkpointing": "vit_gradient_checkpointing use_gradient_checkpointing",
    "--parallel.sequence": "sequence_parallel_size",
    "--parallel.offload optimizer": "offload_optimizer",
    "--optimizer.rates; as in '{\"media.*.encoder.*\": {value: 1e-6}}'": "vit_lr aligner_lr",
    "--model.weights; what `mt-convert` wrote of the run": "resume_only_model",
    "--evaluations; harness has the tasks of lm-evaluation-harness": (
        "eval_metric eval_use_evalscope eval_dataset_args eval_generation_config extra_eval_args"
    ),
    "--eval.limit": "eval_limit",
    "--checkpoint.background": "use_flash_ckpt",
    "--callbacks early-stopping; with --callbacks.early-stopping.patience": "early_stop_interval",
    "--objective; such as dpo, kto, orpo, grpo, ppo or reward": "rlhf_type",
    "--objective; grpo, rloo or reinforce-plus-plus": "advantage_estimator",
    "--objective.sft; with --objective dpo": "sft_alpha",
    "--objective.kl-in; loss, reward or returns": "kl_in_reward",
    "--objective dapo; with --objective.resample": "dynamic_sample max_resample_times",
    f"--objective.truncated mask{_ROLLOUT}": "overlong_filter",
    "--rewards length; --rewards.length.ramp is soft_cache_length, --rewards.length.most the rest of soft_max_length": (
        "soft_max_length soft_cache_length"
    ),
    "--rewards python; a function of yours": "cosine_* repetition_n_grams repetition_max_penalty reward_model_plugin",
    "--rewards model": "reward_model_* reward_template",
    "--objective.importance; token or icepop": "rollout_importance_sampling_mode",
    "--objective.importance-high; with --objective.importance": "rollout_importance_sampling_threshold",
    "--objective.gamma; with --objective ppo": "gamma",
    "`mt-plugins new`; a plugin of yours": "external_plugins custom_register_path",
    "`mt-generate --stop`; after the run": "stop_words",
    "`mt-export --shard-size`; after the run": "max_shard_size",
    "not needed; the entropy of answers is in metrics.jsonl": "log_entropy log_rollout_offpolicy_metrics",
    "not needed; a run without --output has a number of its own": "add_version",
    "without a counterpart; no objective has this loss": (
        "chord_* sdar_* rlsd_* fipo_* real_tau advantage_reweight off_policy_sequence_mask_delta enable_channel_loss mrl_dims"
    ),
    "without a counterpart; no adapter does this": "fourier_* reft_* llamapro_* adapter_act adapter_length",
    "without a counterpart; whole distributions are compared, of a teacher on the student's device": "gkd_* offload_teacher_model",
    "--objective.tool-rounds; with --objective.tools": "max_turns",
    "without a counterpart; turns of an answer are calls of --objective.tools": (
        "multi_turn_scheduler completion_length_limit_scope use_gym_env gym_env"
    ),
    "without a counterpart; the reference is the model of step 0 throughout": "ref_adapters",
    "without a counterpart; processes divide rows, layers, experts and sequences": "deepspeed_autotp_size",
    "without a counterpart; rows are written as their template has them": (
        "agent_template norm_bbox response_prefix add_non_thinking_prefix disable_ignore_empty_think model_name model_author decision_*"
    ),
    "not needed": (
        "use_hf use_swift_lora tuner_backend template_backend padding_side is_binary_loss_scale val_dataset_shuffle"
        " disable_auto_column_mapping experts_impl problem_type init_strategy local_repo_path enable_npu_model_patch load_args"
        " load_data_args ignore_args_error safe_serialization check_model acc_strategy use_logits_to_keep"
        " create_checkpoint_symlink zero_hpz_partition_size enable_flattened_weight_sync async_generate sleep_level"
        " move_model_batches offload_model hqq_axis device_groups structured_outputs_regex logprobs top_logprobs model_kwargs stream"
    ),
}
