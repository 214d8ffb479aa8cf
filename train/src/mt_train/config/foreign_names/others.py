"""Options of launchers, qlora.py, lm-evaluation-harness and Lightning."""

from __future__ import annotations

_LOW_RANK = "; with --adapter lora or another of low rank"

LAUNCHERS = {"--nproc-per-node": "nproc gpus num_gpus num_processes devices"}
QLORA = {
    "--quantizer; 4 is nf4 or fp4, 8 is int8": "bits quant_type",
    "--quantizer.double; on by default, with --quantizer nf4 or fp4": "double_quant",
    "--adapter full; the default": "full_finetune",
    f"--adapter.targets all-linear{_LOW_RANK}": "lora_modules",
    "--data.columns; as in '{prompt: input, response: output}'": "dataset_format",
    "--data.read-rows; held-out rows are among them": "max_train_samples",
    "--data.max-source-len; of both together --train.sequence-len": "source_max_len",
    "--data.max-target-len; of both together --train.sequence-len": "target_max_len",
    "--data.train-on all": "train_on_source",
    "--optimizer adamw-8bit": "adam8bit",
    "--data.eval; a number of rows": "eval_dataset_size",
    "--eval.limit": "max_eval_samples",
    "without a counterpart; beams are searched without groups, and different texts are drawn by temperature": "diversity_penalty",
    "not there; `mt-train --dry-run --gpu NAME` says whether it fits": "max_memory_MB",
    "--evaluations mmlu": "do_mmlu_eval mmlu_dataset mmlu_split max_mmlu_samples",
}
HARNESS = {
    "--evaluations harness; its tasks are --evaluations.harness.tasks": "tasks num_fewshot",
    "--evaluations.harness.chat; with --evaluations harness": "apply_chat_template",
    "--evaluations.harness.multiturn; with --evaluations harness": "fewshot_as_multiturn",
    "`mt-eval --weights` or `mt-eval --run`": "model_args",
}
LIGHTNING = {
    "--optimizer.beta1 and --optimizer.beta2": "betas",
    "--train.dtype": "precision mixed_precision",
    "--train.clip-norm": "gradient_clip_val",
    "--train.epochs": "max_epochs",
    "--train.global-batch-size; it counts the rows of a step on all devices together": "accumulate_grad_batches",
}
