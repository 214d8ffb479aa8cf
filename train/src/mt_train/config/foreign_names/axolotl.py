"""Options of axolotl's config."""

from __future__ import annotations

_LOW_RANK = "; with --adapter lora or another of low rank"

AXOLOTL = {
    "--model.weights": "base_model base_model_config",
    "--model.weights; as in org/name@revision": "revision_of_model",
    "--model; its options are keys below it": "type_of_model overrides_of_model_config overrides_of_model_kwargs",
    "--tokenizer.path": "tokenizer_config",
    "--tokenizer; its options are keys below it": "tokenizer_type tokenizer_use_fast tokenizer_legacy tokenizer_use_mistral_common",
    "--tokenizer.add-tokens": "tokens",
    "--tokenizer.init; mean, subtokens or normal": "mean_resizing_embeddings",
    "--tokenizer; its tokens are keys such as --tokenizer.pad-token": "special_tokens",
    "--dataset; its file is --dataset.path, and several are --dataset concat": "datasets",
    "--dataset stream, or --dataset.streaming of --dataset hf": "pretraining_dataset",
    "--data.eval; a share, rows or a path": "val_set_size test_datasets",
    "--data.cache": "dataset_prepared_path",
    "--data.workers": "dataset_processes",
    "--data.batching packing": "sample_packing batch_flattening",
    "--data.batching; held-out rows are batched as those of the training are": "eval_sample_packing",
    "--data.packing sequential": "sample_packing_sequentially",
    "--data.shuffle-buffer": "streaming_multipack_buffer_size pretrain_multipack_buffer_size",
    "--data.shuffle": "shuffle_merged_datasets",
    "--data.shuffle false; rows come in their order": "curriculum_sampling",
    "--data.truncation": "excess_length_strategy",
    "--data.max-source-len": "max_prompt_len",
    "--data.pad-multiple": "pad_to_sequence_len",
    "--data.train-on; all trains on the prompts, too": "train_on_inputs roles_to_train",
    "--data.template; a name or a Jinja file": "chat_template chat_template_jinja",
    "--data.system": "default_system_message",
    f"--adapter.targets all-linear{_LOW_RANK}": "lora_target_linear",
    f"--adapter.ranks{_LOW_RANK}": "lora_rank_pattern",
    f"--adapter.alphas{_LOW_RANK}": "lora_alpha_pattern",
    f"--adapter.targets{_LOW_RANK}; as in '[model.layers.3.*]'": "peft_layers_to_transform peft_layers_pattern",
    "--adapter; pissa, olora, loftq, eva, lora-ga and others are adapters": "peft_init_lora_weights",
    "--adapter.fp32; the trained numbers have fp32 masters in any case": "peft_autocast_adapter_dtype",
    "--adapter dora": "peft_use_dora",
    f"--adapter.rslora{_LOW_RANK}": "peft_use_rslora",
    "--adapter.weights": "lora_model_dir",
    "--adapter relora; with --schedule relora": "relora relora_cpu_offload",
    "--adapter.pruned; with --adapter relora": "relora_prune_ratio",
    "--adapter.pruning; with --adapter relora": "relora_prune_method",
    "--adapter.every-steps; with --adapter relora, and --schedule.reset-steps of --schedule relora": "jagged_restart_steps",
    "--schedule.restart-steps; with --schedule relora": "jagged_restart_warmup_steps",
    "--train.enable; patterns of parameters": "lora_modules_to_save unfrozen_parameters",
    "--train.disable; as in '[media.*.encoder.*]'": "freeze_mm_modules",
    "--train.epochs": "num_epochs",
    "--train.attention": (
        "flash_attention sdp_attention xformers_attention flex_attention eager_attention sage_attention attn_implementation_kwargs"
    ),
    "--train.activation-checkpointing selective": "selective_checkpointing",
    "--train.mlp-tile-tokens": "tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp",
    "--train.sequence-len": "sequence_len eval_sequence_len max_packed_sequence_len",
    "--parallel.sequence": "sequence_parallel_degree context_parallel_size",
    "--parallel.offload parameters; with --parallel.zero-stage 3": "layer_offloading ple_cpu_offload",
    "--parallel.zero-stage; 3 divides the weights over all ranks": "dp_shard_size dp_replicate_size",
    "--schedule": "lr_scheduler",
    "--schedule.floor-ratio; with --schedule cosine": "cosine_min_lr_ratio",
    "--optimizer.rates; a pattern of names for each": "lr_groups embedding_lr embedding_lr_scale",
    "--optimizer lisa; with --optimizer.active": "lisa_n_layers lisa_activated_layers",
    "--optimizer.switch-steps; with --optimizer lisa": "lisa_step_interval",
    "--encoders; sizes of images are options of the encoder": "image_size image_resize_algorithm processor_type processor_kwargs",
    "--eval.every-epochs or --eval.every-steps": "evals_per_epoch",
    "--eval.samples; of --eval.sample-tokens tokens": (
        "generate_samples num_generation_samples generation_max_new_tokens generation_* eval_table_size eval_max_new_tokens"
    ),
    "--evaluations; answers with metrics such as bleu and rouge, or perplexity": "do_causal_lm_eval eval_causal_lm_metrics",
    "--evaluations; mmlu and others": "do_bench_eval bench_dataset bench_split",
    "--checkpoint.every-epochs or --checkpoint.every-steps": "saves_per_epoch save_first_step dynamic_checkpoint",
    "--resume auto": "auto_resume_from_checkpoints",
    "--callbacks spike-rollback; or --callbacks early-stopping": "loss_watchdog_threshold loss_watchdog_patience",
    "--trackers wandb; its options are keys such as --trackers.wandb.project": ("use_wandb wandb_*"),
    "--trackers mlflow; its options are keys such as --trackers.mlflow.experiment": (
        "use_mlflow mlflow_* hf_mlflow_log_artifacts"
    ),
    "--objective; such as dpo, kto, orpo or grpo": "rl",
    "--objective; grpo's options are its keys, and those of a vLLM server of --sampler vllm": "trl vllm",
    "--objective.beta; with --objective dpo or another of pairs": "rl_beta dpo_beta",
    "--objective.beta; with --objective orpo": "orpo_alpha",
    "--objective.loss; with --objective dpo": "dpo_loss_type dpo_loss_weights",
    "--objective.loss sigmoid-norm; with --objective dpo": "dpo_norm_loss",
    "--objective.wpo; with --objective dpo": "dpo_use_weighting",
    "--objective.desirable-weight; with --objective kto": "kto_desirable_weight",
    "--objective.undesirable-weight; with --objective kto": "kto_undesirable_weight",
    "--objective.resample; with --objective grpo": "reroll_start_fraction reroll_max_groups",
    "--objective.replay; a run whose answers are learned from again": "replay_buffer_size replay_recompute_logps",
    "--objective sft; with --task-print classification": "num_labels",
    "--objective distill; with --objective.teacher-path, a model in place of columns of log-probabilities": "kd_trainer",
    "--objective.weight; with --objective distill": "kd_alpha",
    "--objective.weight; the cross-entropy has the rest of 1": "kd_ce_alpha",
    "--objective.softmax-temperature; with --objective distill": "kd_temperature",
    "--objective.beta; with --objective distill --objective.divergence jsd": "kd_beta",
    "without a counterpart; whole distributions of a teacher are compared": "kd_*",
    "--sampler vllm; it gets merged weights": "vllm_lora_sync",
    "`mt-export --merge`; after the run": "merge_lora merge_method",
    "`mt-train --profile`; it records three steps": "profiler_steps profiler_steps_start",
    "`mt-generate --chat`; after the run": "gradio_*",
    "`mt-export --gguf`; after the run": "quantization",
    "without a counterpart; weights are not trained in fewer bits": "qat",
    "`mt-plugins list`; every installed plugin is there": "plugins",
    "not needed; TensorBoard files are always written": "use_tensorboard",
    "not needed; tokens per second are in metrics.jsonl": "include_tokens_per_second include_tkps",
    "not needed; the loss is computed in chunks of tokens, with gradients": "chunked_cross_entropy chunked_cross_entropy_num_chunks",
    "not needed": (
        "axolotl_config_path bnb_config_kwargs dataset_keep_in_memory ddp device device_map embeddings_skip_upcast"
        " experimental_skip_move_to_device flex_attn_compile_kwargs gc_collect_steps gc_steps hf_use_auth_token"
        " is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_qwen_derived_model is_preprocess"
        " lisa_layers_attribute llama4_linearized_experts lora_on_cpu multipack_real_batches num_dataset_shards_to_save"
        " preprocess_iterable pretraining_sample_concatenation push_dataset_to_hub qlora_sharded_model_loading"
        " quantize_moe_experts reinit_weights resize_token_embeddings_to_32x reward_num_workers sample_packing_bin_size"
        " sample_packing_eff_est sample_packing_group_size sample_packing_mp_start_method shrink_embeddings"
        " skip_prepare_dataset skip_zero_advantage_batches tokenizer_save_jinja_files torchdistx_path total_num_tokens"
        " total_supervised_tokens world_size"
    ),
    "not needed; documents in a row are always kept apart": "pretrain_multipack_attn sdpa_varlen",
    "not needed; norms compute in fp32 in any precision": "fp32_norms fp32_norm_classes",
    "not needed; a run's order follows from its seed": "shuffle_before_merging_datasets",
    "not there; `mt-train --dry-run --gpu NAME` says whether it fits": "max_memory gpu_memory_limit",
    "without a counterpart; equal rows are counted by mt-data inspect, and stay": "dataset_exact_deduplication",
    "without a counterpart; `mt-plugins list --components` names the optimizers": "qgalore_* dion_* adam_epsilon2 adam_beta3",
    "without a counterpart; schedules are warm-up and decay by steps alone": (
        "lr_quadratic_warmup cosine_constant_lr_ratio lr_div_factor jagged_restart_anneal_steps"
    ),
    "without a counterpart; trackers here are wandb, mlflow and csv": "use_comet comet_* use_otel_metrics otel_metrics_*",
    "without a counterpart; positions are those of the text": "use_pose pose_*",
    "--adapter; loftq is one": "peft",
    "without a counterpart; a run of other code is a plugin of yours": "trainer_cls rollout_func cls_model_config",
    "without a counterpart; answers are collected, and then learned from": (
        "async_prefetch prefetch_depth streaming_min_groups streaming_partial_batch use_data_producer"
    ),
    "--quantizer; weights that are quantized already are not trained": "gptq model_quantization_config*",
    "without a counterpart; no objective has this loss": "ebft use_eaft eaft_k process_reward_model",
    "without a counterpart; attention is as the family has it": "scaling_softmax* s2_attention",
    "without a counterpart; processes divide rows, layers, experts and sequences": "tensor_parallel_size",
    "without a counterpart; rows are taken as they are": (
        "dataset_shard_num dataset_shard_idx min_sample_len eot_tokens role_boundaries added_tokens_overrides"
        " fix_untrained_tokens"
    ),
    "not there; kernels are those of torch, or of --train.kernels liger": (
        "flash_attn_* flash_optimum fused_attn_kernel lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel"
        " use_kernels experts_implementation large_head_attention gemma4_hybrid_attn_impl use_onebitllms"
        " dpo_use_liger_kernel use_liger_loss dpo_use_logits_to_keep dpo_padding_free deepcompile heads_k_stride ring_attn_func"
    ),
}
