"""Options of TRL: its trainers, ``ModelConfig`` and ``ScriptArguments``."""

from __future__ import annotations

_ROLLOUT = "; with --objective grpo or another that generates"

TRL = {
    "--train.sequence-len": "max_length max_seq_length",
    "--data.max-source-len": "max_prompt_length",
    "--objective; sft has the loss on the answer, pretrain on all tokens": "completion_only_loss",
    "--data.truncation; keep_start is right, keep_end is left": "truncation_mode",
    "--data.template": "chat_template_path",
    "--dataset hf; its name on the Hub is --dataset.path": "dataset_name",
    "--dataset.subset; with --dataset hf": "dataset_config",
    "--dataset.split; with --dataset hf": "dataset_train_split",
    "--dataset.eval-split; with --dataset hf": "dataset_test_split",
    "--dataset.streaming; with --dataset hf": "dataset_streaming",
    "--data.eval; a share, or a number of rows": "test_split_size",
    "--data.batching packing; documents in a row are always kept apart": "padding_free",
    "--data.batching; held-out rows are batched as those of the training are": "eval_packing",
    "--data.workers": "dataset_num_proc",
    "--model; its options are keys below it": "model_init_kwargs",
    "--tokenizer.eos-token": "eos_token",
    "--tokenizer.pad-token": "pad_token",
    "--objective.centring; with --objective reward": "center_rewards_coefficient",
    "--data.packing; best_fit is bfd": "packing_strategy",
    "--data.pad-multiple": "pad_to_multiple_of",
    "--data.shuffle": "shuffle_dataset",
    "--data.train-on assistant": "assistant_only_loss",
    "--data.columns; as in '{text: YOURS}'": "dataset_text_field",
    "--adapter; with its options as keys below it": "peft_config use_peft",
    "--adapter.targets; experts are projections under an adapter, which patterns name": "lora_target_parameters",
    "--quantizer nf4": "load_in_4bit bnb_4bit_quant_type",
    "--quantizer int8": "load_in_8bit",
    "--quantizer.double; on by default, with --quantizer nf4 or fp4": "use_bnb_nested_quant bnb_4bit_use_double_quant",
    "--model.weights; as in org/name@revision": "model_revision",
    "--train.activation-checkpointing host": "activation_offloading",
    "--model.balance, or --model.balance-loss of --model huggingface": "router_aux_loss_coef moe_aux_loss_coef",
    "--adapter.dropout, and --model.dropout of some families; both are 0 by default": "disable_dropout",
    "--eval.samples": "generate_during_eval dpo_generate_during_eval",
    "--objective.kl; with the objectives of pairs and KTO --objective.beta": "beta",
    "--objective.loss; GRPO's grpo is --objective grpo --objective.mean answer, dapo is its default": "loss_type",
    "--objective.loss; with DPO, as in '{name: sigmoid, label_smoothing: 0.1}'": "label_smoothing",
    "--objective.loss; with DPO, as in '[{name: sigmoid, weight: 0.8}, {name: bco-pair, weight: 0.2}]'": "loss_weights",
    "--objective.loss; with DPO, as in '{name: sigmoid, divergence: forward-kl}'": "f_divergence_type",
    "--objective.loss; with DPO, as in '{name: sigmoid, divergence: alpha, divergence_alpha: 0.5}'": (
        "f_alpha_divergence_coef"
    ),
    "--objective.loss; with DPO, as in '{name: discopop, tau: 0.05}'": "discopop_tau",
    "--objective.loss dft; with --objective sft": "use_dft_loss enable_dft_loss",
    "--objective.wpo; with --objective dpo": "use_weighting",
    "--objective.ld-alpha; with --objective dpo": "ld_alpha",
    "--objective.sft; with --objective dpo": "rpo_alpha",
    "--objective.sft; with --objective cpo": "cpo_alpha",
    "--objective.desirable-weight; with --objective kto": "desirable_weight",
    "--objective.undesirable-weight; with --objective kto": "undesirable_weight",
    f"--objective.group{_ROLLOUT}": "num_generations",
    f"--objective.max-new-tokens{_ROLLOUT}": "max_completion_length response_length",
    f"--objective.passes{_ROLLOUT}": "num_iterations num_ppo_epochs",
    f"--objective.updates{_ROLLOUT}; optimizer steps of an iteration": "steps_per_generation num_mini_batches",
    f"--objective.prompts{_ROLLOUT}; times --objective.group it is their number of answers": "generation_batch_size",
    f"--objective.clip-low and --objective.clip-high{_ROLLOUT}": "epsilon cliprange",
    "--objective.clip-high; with --objective cispo less 1, as the bound is 1 + clip-high there": "epsilon_high",
    f"--objective.dual-clip{_ROLLOUT}": "delta",
    "--objective.soft-positive; with --objective sapo": "sapo_temperature_pos tau_pos",
    "--objective.soft-negative; with --objective sapo": "sapo_temperature_neg tau_neg",
    "--objective.entropy-weight; in the mean of the loss, which is theirs with --objective.mean token": "entropy_coef",
    f"--objective.scale{_ROLLOUT}": "scale_rewards",
    "--objective.scale batch; with --objective rloo": "normalize_advantages",
    "--objective.normalise; each, as in --objective gdpo, is normalize_then_sum": "multi_objective_aggregation",
    f"--objective.truncated mask{_ROLLOUT}": "mask_truncated_completions",
    "--objective.loss sequence; --objective gspo has GSPO's other values, too": "importance_sampling_level",
    f"--objective.temperature{_ROLLOUT}, else `mt-generate --temperature`": "temperature",
    f"--objective.top-p{_ROLLOUT}, else `mt-generate --top-p`": "top_p",
    f"--objective.top-k{_ROLLOUT}, else `mt-generate --top-k`": "top_k",
    "--objective.temperature, --objective.top-p and --objective.top-k; nothing else changes how answers are drawn": (
        "generation_kwargs min_p cache_implementation"
    ),
    f"--objective.missing-eos-penalty{_ROLLOUT}": "missing_eos_penalty",
    "--objective.kl-estimator; k2, the default in the loss, has the KL's own gradient": "use_bias_correction_kl",
    "--objective.value-weight; with --objective ppo": "vf_coef",
    "--objective.clip-value; with --objective ppo": "cliprange_value",
    "--objective.kl; with --objective ppo": "kl_coef",
    "--objective.lam; with --objective ppo": "lam",
    "--rewards; each has a weight, such as --rewards.length.weight": "reward_funcs reward_weights",
    "--rewards model; its folder is --rewards.model.path": "reward_model_path",
    "--sampler vllm": "use_vllm vllm_mode",
    "--sampler.url; with --sampler vllm": "vllm_server_base_url vllm_server_host vllm_server_port",
    "--sampler.timeout; with --sampler vllm": "vllm_server_timeout",
    "--objective.importance; token or icepop, and none by default": (
        "vllm_importance_sampling_correction vllm_importance_sampling_mode"
    ),
    "--objective.importance-high; with --objective.importance": (
        "vllm_importance_sampling_clip_max vllm_importance_sampling_cap"
    ),
    "--objective.importance-low; with --objective.importance icepop": "vllm_importance_sampling_clip_min",
    "--sampler vllm; options of the server are those of `vllm serve`": "vllm_*",
    "not needed; every answer of a run is in its rollouts.jsonl": (
        "log_completions log_completions_* log_multimodal num_completions_to_print log_unique_prompts"
        " wandb_log_unique_prompts"
    ),
    "without a counterpart; a held-out prompt has one answer": "num_generations_eval",
    "without a counterpart; rewards are neither clipped nor whitened by themselves": "reward_clip_range whiten_rewards",
    "without a counterpart; the reference is the model of step 0 throughout": "sync_ref_model ref_model_*",
    "without a counterpart; chat templates are rendered with their own defaults": "chat_template_kwargs",
    "without a counterpart; no objective has this loss": (
        "vespo_* off_policy_mask_threshold top_entropy_quantile entropy_* use_adaptive_entropy"
    ),
    "--objective.tools; a Python file of functions": "tools",
    "--objective.tool-rounds; with --objective.tools": "max_tool_calling_iterations",
    "without a counterpart; tools have no state for each answer": "environment_factory",
    "--objective.on-policy; with --objective gkd": "lmbda",
    "--objective.teacher-path; with --objective gkd or distill": "teacher_model_name_or_path teacher_model",
    "--objective.teacher-dtype; with --objective gkd or distill": "teacher_model_init_kwargs",
    "--objective sft; on texts that the teacher wrote with `mt-generate --prompts`": "seq_kd",
    "without a counterpart; a teacher is a folder here, which each rank reads whole": "teacher_*",
    "not needed; the head computes in the run's precision, and what follows it in fp32": "cast_lm_head_to_fp32",
    "not needed; a reference is measured in the batches of the run": "precompute_ref_batch_size",
    "not needed": (
        "lora_task_type bnb_4bit_quant_storage bnb_4bit_compute_dtype dataset_kwargs ignore_bias_buffers padding_value"
        " is_encoder_decoder ds3_gather_for_generation use_transformers_paged use_transformers_continuous_batching"
        " transformers_continuous_batching_config local_rollout_forward_batch_size num_sample_generations"
    ),
}
SHARED = {
    "--model.weights": "model_name_or_path",
    "--data.batching packing": "packing neat_packing",
    "not needed; code in a model's folder is never run": "trust_remote_code",
    "not needed; the reference is the model of step 0": "ref_model precompute_ref_log_probs",
}
"""Options that LLaMA-Factory has by the same names."""
