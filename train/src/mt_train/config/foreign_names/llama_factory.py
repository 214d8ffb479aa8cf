"""Options of LLaMA-Factory: arguments of model, data, fine-tuning, generation, training and evaluation."""

from __future__ import annotations

_LOW_RANK = "; with --adapter lora or another of low rank"

LLAMA_FACTORY = {
    "--objective; such as pretrain, sft, dpo, kto, ppo or reward": "stage",
    "--adapter; full, freeze, lora, oft or another one": "finetuning_type",
    f"--adapter.rank{_LOW_RANK}": "lora_rank",
    f"--adapter.targets{_LOW_RANK}": "lora_target",
    "--adapter.weights, or --model.adapters for those before the last": "adapter_name_or_path adapter_folder",
    "--model.adapters; they are merged, and the run has an adapter of its own": "create_new_adapter",
    "--adapter lora-plus; its ratio is --adapter.ratio": "loraplus_lr_ratio",
    "--optimizer.rates; as in '{\"*embed_tokens*\": {value: 1e-6}}'": "loraplus_lr_embedding",
    "--adapter pissa; its --adapter.iterations are none by default": "pissa_init pissa_iter",
    "`mt-export --as-lora`; after the run": "pissa_convert",
    "--adapter oft": "oft_rank oft_target",
    "--adapter.blocks; with --adapter freeze": "freeze_trainable_layers",
    "--adapter.also; with --adapter freeze": "freeze_extra_modules",
    "--adapter.also; with --adapter freeze and --adapter.blocks 0, as in '[model.layers.3.self_attn.*]'": "freeze_trainable_modules",
    "--train.enable; patterns of parameters": "additional_target",
    "--train.disable; as in '[media.*.encoder.*]'": "freeze_vision_tower freeze_multi_modal_projector freeze_language_model",
    "--quantizer; nf4, fp4 or int8": "quantization_bit quantization_method quantization_type",
    "--quantizer.double; on by default, with --quantizer nf4 or fp4": "double_quantization",
    "--model.rope-scaling; by default what the config.json of the weights says": "rope_scaling",
    "--dataset.path": "dataset_dir",
    "--data.media-root": "media_dir",
    "--data.template": "template",
    "--data.system": "default_system",
    "--data.eval; a share, rows or a path": "val_size eval_dataset",
    "--data.read-rows": "max_samples",
    "--data.train-on all": "train_on_prompt",
    "--data.train-on last": "mask_history",
    "--data.cache": "tokenized_path overwrite_cache",
    "--data.shuffle false": "disable_shuffling",
    "--data.shuffle-buffer": "buffer_size",
    "--data.workers": "preprocessing_num_workers",
    "--dataset stream": "streaming",
    "--dataset concat": "mix_strategy interleave_probs",
    "--tokenizer.parse-specials; texts of rows are no special tokens by default": "split_special_tokens",
    "--tokenizer.add-tokens": "add_tokens",
    "--tokenizer.add-special-tokens": "add_special_tokens new_special_tokens",
    "--tokenizer.init": "init_special_tokens",
    "--train.sequence-len": "cutoff_len",
    "--train.attention": "flash_attn",
    "--train.kernels liger": "enable_liger_kernel",
    "--train.activation-checkpointing; off by default": "disable_gradient_checkpointing",
    "--train.activation-checkpointing host": "use_unsloth_gc",
    "--train.dtype bf16; with fp32 copies of the trained weights": "pure_bf16",
    "--train.matmul fp8": "fp8 fp8_*",
    "--objective.beta": "pref_beta",
    "--objective.loss; orpo and simpo are objectives": "pref_loss",
    "--objective.loss; as in '[{name: sigmoid}, {name: bco-pair, weight: 0.5}]', without a running mean of rewards": "pref_bco_weight",
    "--objective.sft; with --objective dpo": "pref_ftx",
    "--objective.gamma; with --objective simpo": "simpo_gamma",
    "--objective.loss; as in '{name: sigmoid, label_smoothing: 0.1}'": "dpo_label_smoothing",
    "--objective.desirable-weight; with --objective kto": "kto_chosen_weight",
    "--objective.undesirable-weight; with --objective kto": "kto_rejected_weight",
    "--objective.prompts; with --objective ppo": "ppo_buffer_size",
    "--objective.passes; with --objective ppo": "ppo_epochs",
    "--objective.kl-target; with --objective ppo": "ppo_target",
    "--rewards model, with its folder as --rewards.model.path; to train one --objective reward": "reward_model",
    "--rewards adapter; with --rewards.adapter.path": "reward_adapters",
    "--optimizer; galore, apollo, badam, muon and adam-mini are optimizers": (
        "use_galore use_apollo use_badam use_muon use_adam_mini"
    ),
    "--optimizer.rank; with --optimizer galore or apollo": "galore_rank apollo_rank",
    "--optimizer.update-steps; with --optimizer galore or apollo": (
        "galore_update_interval apollo_update_interval galore_update_proj_gap"
    ),
    "--optimizer.scale; with --optimizer galore or apollo": "galore_scale apollo_scale",
    "--optimizer galore-per-layer": "galore_layerwise galore_optim_per_parameter",
    "--optimizer galore-8bit": "galore_quantization",
    "--optimizer.scaled; with --optimizer apollo": "apollo_scale_type",
    "--optimizer.switch-steps; with --optimizer badam": "badam_switch_interval",
    "--callbacks early-stopping; its patience is --callbacks.early-stopping.patience": "early_stopping_steps",
    "--objective.token-accuracy": "compute_accuracy",
    "--eval.batch-size": "eval_batch_size",
    "--evaluations; mmlu, ceval and cmmlu, each with its path and shots": "task task_dir n_shot",
    "--evaluations rows; with a name for each set": "eval_on_each_dataset",
    "--encoders; sizes of images are options of the encoder": "image_max_pixels image_min_pixels max_pixels",
    "`mt-eval --predictions` or `mt-generate --prompts`; after the run": "do_predict predict_with_generate",
    "`mt-generate --greedy`; after the run": "do_sample",
    "`mt-generate --num-beams`; after the run": "num_beams eval_num_beams",
    "`mt-generate --length-penalty`; after the run": "length_penalty",
    "`mt-generate --repetition-penalty`; after the run": "repetition_penalty",
    "`mt-generate --max-new-tokens`; after the run": "max_new_tokens",
    "`mt-generate`; after the run": "skip_special_tokens infer_* use_kv_cache",
    "`mt-export --merge`; after the run": "export_*",
    "`mt-eval --output`": "save_dir",
    "`mt-train --profile`; it records three steps": "enable_torch_profiler profiler_* profile_modules",
    "`torchrun` on each node": "master_addr master_port",
    "not needed; norms compute in fp32 in any precision, and those that are trained have fp32 master weights": (
        "upcast_layernorm"
    ),
    "not needed; what follows the head is computed in fp32": "upcast_lmhead_output",
    "not needed; loss.png is always there": "plot_loss",
    "not needed; tokens per second are in metrics.jsonl": "include_effective_tokens_per_second",
    "not needed; a vocabulary grows with --tokenizer.add-tokens": "resize_vocab",
    "not needed; without --model.weights a model begins at random": "train_from_scratch",
    "not there": "use_unsloth use_kt kt_* use_mca use_hyper_parallel hyper_parallel_args use_v1_kernels",
    "without a counterpart; no adapter does this": "use_llama_pro shift_attn mixture_of_depths module_dropout",
    "without a counterpart; no objective has this loss": "use_asft_loss asft_alpha use_eaft_loss eaft_alpha",
    "without a counterpart; trackers here are wandb, mlflow and csv": "use_swanlab swanlab_*",
    "without a counterpart; rewards are learned from as they are": "ppo_score_norm ppo_whiten_rewards",
    "without a counterpart; the optimizer chooses it itself": (
        "badam_* apollo_target apollo_proj apollo_proj_type apollo_layerwise apollo_scale_front galore_target galore_proj_type"
        " galore_target_modules galore_with_embedding galore_proj_* galore_cos_threshold galore_gamma_proj galore_queue_size"
    ),
    "without a counterpart; image sizes aside, media are read as the encoder's folder says": (
        "image_do_pan_and_scan crop_to_patches video_* use_audio_in_video audio_sampling_rate"
    ),
    "without a counterpart; a conversation's tools and thoughts are written as its --data.template has them": (
        "tool_format enable_thinking preserve_thinking"
    ),
    "without a counterpart; runs are started by mt-train, torchrun or deepspeed": "use_ray ray_* resources_per_worker",
    "not needed": (
        "sglang_* cache_dir use_fast_tokenizer new_special_tokens_config low_cpu_mem_usage use_reentrant_gc offload_folder"
        " hf_hub_token ms_hub_token om_hub_token print_param_status preprocessing_batch_size ignore_pad_token_for_loss"
        " data_shared_file_system quantization_device_map download_mode"
    ),
}
