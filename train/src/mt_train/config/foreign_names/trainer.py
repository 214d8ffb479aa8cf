"""Options of the Hugging Face Trainer (``Seq2SeqTrainingArguments``, and what its constructor takes)."""

from __future__ import annotations

TRAINER = {
    "--output": "output_dir run_name logging_dir",
    "--overwrite": "overwrite_output_dir",
    "--resume": "resume_from_checkpoint",
    "--train.steps": "max_steps",
    "--train.epochs": "num_train_epochs",
    "--train.micro-batch-size": "per_device_train_batch_size",
    "--train.micro-batch-size auto; with --train.global-batch-size": "auto_find_batch_size",
    "--train.global-batch-size; it counts the rows of a step on all devices together": "gradient_accumulation_steps",
    "--train.clip-norm": "max_grad_norm",
    "--train.dtype": "bf16 fp16 dtype torch_dtype bfloat16 float16 float32",
    "--train.seed": "seed data_seed",
    "--train.deterministic": "full_determinism",
    "--train.activation-checkpointing": (
        "gradient_checkpointing activation_checkpointing gradient_checkpointing_kwargs activation_checkpointing_kwargs"
    ),
    "--train.compile; backend and mode are its own": "torch_compile torch_compile_*",
    "--train.kernels liger": "use_liger_kernel liger_kernel_config",
    "--train.attention": "attn_implementation",
    "--train.tf32": "tf32",
    "--optimizer; adafactor is that with --optimizer.relative false": "optim",
    "--optimizer; its options are keys below it": "optim_args optimizers",
    "--optimizer; galore, apollo and muon choose the matrices themselves": "optim_target_modules",
    "--optimizer.lr": "learning_rate",
    "--optimizer.weight-decay": "weight_decay",
    "--optimizer.beta1": "adam_beta1",
    "--optimizer.beta2": "adam_beta2",
    "--optimizer.eps": "adam_epsilon",
    "--schedule; its options are keys below it": "lr_scheduler_type lr_scheduler_kwargs",
    "--schedule.warmup-steps; a share of all steps is --schedule.warmup-ratio": "warmup_steps",
    "--schedule.warmup-ratio": "warmup_ratio",
    "--parallel.zero-stage; see --parallel.offload and --parallel.deepspeed, too": (
        "deepspeed fsdp fsdp_* accelerator_config parallelism_config"
    ),
    "--parallel.timeout-seconds": "ddp_timeout",
    "--eval.batch-size": "per_device_eval_batch_size",
    "--eval.every-steps or --eval.every-epochs": "eval_steps eval_strategy evaluation_strategy do_eval",
    "--checkpoint.every-steps or --checkpoint.every-epochs": "save_steps save_strategy",
    "--checkpoint.keep-last": "save_total_limit",
    "--checkpoint.trainable-only; the state of the optimizer is always saved": "save_only_model",
    "--checkpoint.best; as in eval_loss:min": "metric_for_best_model greater_is_better",
    "--callbacks best": "load_best_model_at_end",
    "--callbacks early-stopping; its patience is --callbacks.early-stopping.patience": "early_stopping_patience",
    "--callbacks neftune; its strength is --callbacks.neftune.alpha": "neftune_noise_alpha noisy_embedding_alpha",
    "--callbacks memory": "skip_memory_metrics",
    "--log.every-steps": "logging_steps logging_strategy",
    "--log.console-level or --log.file-level": "log_level disable_tqdm log_level_replica log_on_each_node",
    "--train.on-nonfinite; stop or skip": "logging_nan_inf_filter",
    "--trackers": "report_to",
    "--data.group-by-length": "group_by_length train_sampling_strategy sortish_sampler",
    "--objective.label-smoothing": "label_smoothing_factor",
    "`mt-export --push`; after the run": "push_to_hub hub_*",
    "--dataset; its options are keys below it": "train_dataset",
    "--objective; it makes labels and batches": "data_collator compute_loss_func label_names",
    "--tokenizer; by default the one beside the weights": "processing_class",
    "--evaluations; metrics are components, too": (
        "compute_metrics preprocess_logits_for_metrics include_for_metrics batch_eval_metrics"
    ),
    "--evaluations answers; its lengths, beams and temperature are keys below it": (
        "generation_config generation_max_length generation_num_beams"
    ),
    "--trackers wandb; with --trackers.wandb.project": "project",
    "`mt-eval --weights`; before the run": "eval_on_start",
    "not an option; `CUDA_VISIBLE_DEVICES= mt-train` uses the CPU": "use_cpu no_cuda",
    "not needed; a run saves at SIGTERM, and ends with code 75": "enable_jit_checkpoint",
    "not needed; a resumed run begins at its place in the rows, with the state of its callbacks": (
        "ignore_data_skip restore_callback_states_from_checkpoint"
    ),
    "without a counterpart; evaluations begin with the first --eval.every-steps": "eval_delay",
    "without a counterpart; trackers here are wandb, mlflow and csv": "trackio_* use_trackio",
    "not needed": (
        "do_train dataloader_* remove_unused_columns length_column_name use_cache torch_empty_cache_steps save_on_each_node"
        " include_num_input_tokens_seen bf16_full_eval fp16_full_eval average_tokens_across_devices local_rank"
        " ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph"
        " eval_accumulation_steps eval_do_concat_batches eval_use_gather_object prediction_loss_only logging_first_step"
        " save_safetensors"
    ),
}
