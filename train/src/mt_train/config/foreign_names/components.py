"""Names of components elsewhere, and what they are called here."""

from __future__ import annotations

FOREIGN_COMPONENTS: dict[str, dict[str, str]] = {
    "optimizer": {
        "--optimizer adamw": "adamw-torch adamw-torch-fused adamw-torch-xla adamw-torch-npu-fused adamw-hf adamw-apex-fused",
        "--optimizer adamw-8bit": "adamw-bnb-8bit",
        "--optimizer torchao-adamw-8bit": "adamw-torch-8bit ao-adamw-8bit",
        "--optimizer torchao-adamw-4bit": "adamw-torch-4bit ao-adamw-4bit",
        "--optimizer torchao-adamw-fp8": "ao-adamw-fp8",
        "--optimizer paged-adamw": "paged-adamw-32bit",
        "--optimizer lion": "lion-32bit lion-pytorch",
        "--optimizer lion, with a state of 32 bits in the device's memory,": "lion-8bit paged-lion-32bit paged-lion-8bit",
        "--optimizer rmsprop": "rmsprop-bnb rmsprop-bnb-32bit",
        "--optimizer rmsprop, with a state of 32 bits,": "rmsprop-bnb-8bit",
        "--optimizer galore": "galore-adamw",
        "--optimizer galore-8bit": "galore-adamw-8bit",
        "--optimizer galore-per-layer": "galore-adamw-layerwise",
        "--optimizer galore-per-layer, with Adam's moments in 32 bits,": (
            "galore-adamw-8bit-layerwise galore-adafactor-layerwise"
        ),
        "--optimizer apollo": "apollo-adamw apollo-adamw-layerwise",
        "without a counterpart; schedule-free-adamw is the one that is averaged": "schedule-free-radam schedule-free-sgd",
        "without a counterpart; `mt-plugins list --components` names what there is, and a plugin of yours may bring it": (
            "adamw-anyprecision ademamix ademamix-8bit paged-ademamix-32bit paged-ademamix-8bit adagrad grokadamw stable-adamw"
            " optimi-adamw adopt-adamw adamc came-pytorch dion sinkgd polora flash-adamw flash-adam flash-sgd flash-sgdw"
            " flash-lion q-galore-adamw8bit"
        ),
    },
    "adapter": {
        "--adapter lora --quantizer nf4, or --recipe qlora": "qlora",
        "--adapter lora --adapter.rslora": "rslora",
        "--adapter lora-plus": "loraplus",
        "--adapter freeze --adapter.blocks 0, with --adapter.also '[*norm*]',": "ln-tuning",
        "without a counterpart; its virtual tokens would be tokens of the rows": (
            "prompt-tuning prefix-tuning p-tuning multitask-prompt-tuning adaption-prompt llama-adapter cpt cartridge"
        ),
        "without a counterpart; the embedding is trained as a whole, by --train.enable '[*embed_tokens*]'": "trainable-tokens",
        "without a counterpart; the table in docs/adapters.md says what there is": (
            "vblora fourierft xlora poly shira c3a miss bone waveft road gralora longlora llamapro reft psoft osf adamss beft glora"
            " deft frod lily peanut pvera shadow supertuning tinylora unilora adapter"
        ),
    },
    "schedule": {
        "--schedule cosine-restarts, with --schedule.cycles 1 as the default there,": "cosine-with-restarts",
        "--schedule constant": "constant-with-warmup",
        "--schedule cosine with --schedule.floor-ratio": "cosine-with-min-lr cosine-warmup-with-min-lr",
        "--schedule wsd, with --schedule.form cosine as the default there,": "warmup-stable-decay",
        "--schedule constant --callbacks plateau": "reduce-lr-on-plateau",
        "without a counterpart; --callbacks plateau lowers rates, and nothing raises them again": "greedy",
        "without a counterpart; --schedule cosine comes nearest": "one-cycle rex",
    },
    "objective": {
        "--objective pretrain": "pt cpt clm pretraining completion",
        "--objective reward": "rm reward-modeling",
        "--objective sft --task-print classification, with each label as the answer,": "classify classification seq-cls",
        "--objective dpo --objective.loss ipo": "ipo",
        "--objective dpo --objective.loss bco-pair": "bco",
        "--objective grpo": "bnpo",
        "--objective distill": "distillation kd",
        "without a counterpart; no objective has this loss": "luspo vespo ebft",
    },
    "evaluation": {"--evaluations harness": "lm-eval lm-evaluation-harness"},
    "tracker": {
        "not needed; TensorBoard files are always written": "tensorboard",
        "without a counterpart; wandb, mlflow and csv are there, and a plugin of yours may bring it": (
            "swanlab comet comet-ml clearml neptune trackio dvclive azure-ml aim flyte codecarbon"
        ),
    },
    "quantizer": {
        "--quantizer nf4": "bnb bitsandbytes bnb-4bit int4",
        "--quantizer int8": "bnb-8bit",
        "without a counterpart; weights are quantized as they are read": "gptq awq hqq aqlm eetq fp8 mxfp4 quanto",
    },
}
"""Kind → what a component of another program is here, up to a remark → its names there, as components are spelled here."""
