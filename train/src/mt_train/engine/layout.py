"""Faults of the keys of a layout, each by itself: precision, offload, pipeline, sequence, batch, expert. Imports no torch."""

from __future__ import annotations

from mt_core.errors import Fault
from mt_train.config.run import RunConfig


def wrong_precision(config: RunConfig, dtype: str, device: str) -> list[Fault]:
    """Return faults of the precision: what a device cannot compute in, and loss scales of a precision that needs none."""
    faults, scale = [], config.parallel.deepspeed.fp16
    if dtype == "fp16" and device == "cpu":
        problem, fix = "fp16 does not train on a CPU.", "Set --train.dtype fp32 or bf16."
        faults.append(Fault(key="train.dtype", problem=problem, fix=fix))
    if config.train.tf32 and device == "cpu":
        faults.append(Fault(key="train.tf32", problem="a CPU has no TensorFloat-32.", fix="Set it to false."))
    if config.train.matmul == "fp8" and dtype != "bf16":
        problem, fix = f"fp8 stands beside weights in bf16, and the run trains in {dtype}.", "Set --train.dtype bf16."
        faults.append(Fault(key="train.matmul", problem=problem, fix=fix))
    faults += wrong_attention(config.train.attention, dtype, device)
    if config.train.kernels == "liger" and device == "cpu":
        problem, fix = "liger has kernels for GPUs, and this run is on a CPU.", "Set it to torch."
        faults.append(Fault(key="train.kernels", problem=problem, fix=fix))
    if config.train.kernels == "liger" and config.train.compile:
        problem, fix = "train.compile makes such kernels itself.", "Set it to torch, or --train.compile false."
        faults.append(Fault(key="train.kernels", problem=problem, fix=fix))
    if dtype != "fp16" and scale.model_dump(exclude_none=True):
        key, problem = "parallel.deepspeed.fp16", "only fp16 scales its loss, and the run trains in another precision."
        faults.append(Fault(key=key, problem=problem, fix="Leave it out, or set --train.dtype fp16."))
    return faults


def wrong_attention(kernel: str, dtype: str, device: str) -> list[Fault]:
    """Return the fault of a kernel of ``train.attention`` that the device does not have in this precision."""
    runs_there = {
        "flash3": device != "cpu" and dtype != "fp32",
        "flash": device == "cpu" or dtype != "fp32",  # torch has one of its own for CPUs, in fp32 too
        "efficient": device != "cpu",
    }
    if runs_there.get(kernel, True):
        return []
    where = "on a GPU" if kernel == "efficient" else "in bf16 or fp16 on a GPU"
    problem = f"{kernel} attends {where}, and the run is in {dtype} on {device}."
    return [Fault(key="train.attention", problem=problem, fix="Set it to auto.")]


def wrong_offload(config: RunConfig) -> list[Fault]:
    """Return the reasons why what is offloaded does not go with the stage."""
    offload, stage, key = config.parallel.offload, config.parallel.zero_stage, "parallel.offload"
    if offload == "optimizer" and stage == 0:
        problem, fix = (
            "optimizer needs ZeRO, got zero_stage=0.",
            "Set --parallel.zero-stage 1, 2 or 3, or leave it auto.",
        )
        return [Fault(key=key, problem=problem, fix=fix)]
    if offload == "parameters" and stage not in ("auto", 3):
        problem = f"parameters needs ZeRO 3, got zero_stage={stage}."
        return [Fault(key=key, problem=problem, fix="Set --parallel.zero-stage 3, or leave it auto.")]
    return []


def unused_reduction(config: RunConfig, dtype: str, stage: int) -> tuple[str, ...]:
    """Say where DeepSpeed takes an option about the reduction of gradients, and does not read it: its optimizers differ by stage."""
    reads_it = stage == 2 or (stage == 1 and dtype != "bf16")
    if reads_it or config.parallel.deepspeed.zero_optimization.use_multi_rank_bucket_allreduce is not False:
        return ()
    where = f"in {dtype} at ZeRO {stage}" if stage == 1 else f"at ZeRO {stage}"
    return (
        f"parallel.deepspeed.zero_optimization.use_multi_rank_bucket_allreduce is of no use {where}; DeepSpeed reads it at ZeRO 2, in fp32"
        " and fp16 also at 1",
    )


def too_many_stages(stages: int, layers: int, joined: int = 0) -> Fault:
    """Said on paper where the number of layers is known, else when the model is there; ``joined`` blocks are one with the first layer."""
    first = f"embedding with {joined} blocks behind which media are added, other" if joined else "embedding,"
    return Fault(
        key="parallel.pipeline",
        problem=f"the model has {layers} layers ({first} blocks, norm and head), too few for {stages} stages.",
        fix=f"Set --parallel.pipeline {layers} or less.",
    )


def wrong_pipeline(config: RunConfig, world: int, dtype: str) -> list[Fault]:
    """Return the reasons why ``parallel.pipeline`` does not fit the ranks, the model, or the rest of the layout."""
    stages, parallel = config.parallel.pipeline, config.parallel
    if stages == 1:
        return []
    faults = []
    if world % stages:
        possible = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
        start = f"start {stages} processes or a multiple of them (--nproc-per-node {stages})"
        fix = f"Set --parallel.pipeline to one of {possible}, or {start}."
        what = "1 rank does" if world == 1 else f"{world} ranks do"
        faults.append(Fault(key="parallel.pipeline", problem=f"{what} not divide into {stages} stages.", fix=fix))
    blocks = getattr(config.model.options, "n_layers", None)
    if blocks is not None and stages > blocks + 3:
        faults.append(too_many_stages(stages, blocks + 3))
    # ZeRO 0 would clip by the first stage's norm only, and let infinities through; 2 and 3 cut what a stage accumulates.
    if parallel.zero_stage not in ("auto", 1):
        problem = f"{parallel.zero_stage} does not go with a pipeline, which runs ZeRO 1."
        faults.append(Fault(key="parallel.zero-stage", problem=problem, fix="Set 1, or leave it auto."))
    refused = [
        ("parallel.offload", parallel.offload, parallel.offload != "none", "none"),
        ("train.dtype", dtype, dtype == "fp16", "bf16 or fp32"),
        # A stage that is out of memory would leave the others waiting, and none can try by itself.
        ("train.micro-batch-size", "auto", config.train.micro_batch_size == "auto", "8 or another number"),
    ]
    for key, what, given, instead in refused:
        if given:
            problem, fix = (
                f"{what} does not work in a pipeline yet.",
                f"Set --{key} {instead}, or --parallel.pipeline 1.",
            )
            faults.append(Fault(key=key, problem=problem, fix=fix))
    return faults


def wrong_sequence(config: RunConfig, world: int) -> Fault | None:
    """Return the reason why the ranks or the heads cannot be divided as ``parallel.sequence`` says."""
    size, heads = config.parallel.sequence, getattr(config.model.options, "n_heads", None)
    possible = [n for n in range(1, world + 1) if world % n == 0 and (heads is None or heads % n == 0)]
    if size in possible:
        return None
    what = f"{world} ranks" + (f" and {heads} heads" if heads is not None else "")
    return Fault(
        key="parallel.sequence",
        problem=f"{what} do not divide by {size}.",
        fix=f"Set --parallel.sequence to one of {', '.join(map(str, possible))}, or start another number of processes.",
    )


def wrong_batch(total: int, ranks: int, micro: int) -> list[Fault]:
    """Return the reason why the rows of a step do not divide into micro-batches of so many on each of the ranks."""
    rows = micro * ranks
    if total % rows == 0:
        return []
    near = max(rows, total // rows * rows)
    return [
        Fault(
            key="train.global-batch-size",
            problem=f"{total} rows do not divide into {ranks} ranks × {micro} rows.",
            fix=f"Set --train.global-batch-size {near}, or another --train.micro-batch-size.",
        )
    ]


def undivided_experts(experts: int, ranks: int, *, most: int) -> Fault:
    """Return the fault of experts that do not divide among the ranks, of which ``most`` can have parts: found on paper where the number of
    experts is known, else when the model is built."""
    possible = [size for size in range(2, experts + 1) if experts % size == 0 and most % size == 0]
    fix = (
        f"Set --parallel.expert to one of {', '.join(map(str, possible))}." if possible else "Set --parallel.expert 1."
    )
    return Fault(key="parallel.expert", problem=f"{experts} experts do not divide among {ranks} ranks.", fix=fix)


def no_experts() -> Fault:
    """Return the fault of a model without experts: found on paper where the config says it, else when the model is built."""
    problem = (
        "the model has no layer of experts to divide: none at all, or experts whose own code knows of all of them."
    )
    return Fault(
        key="parallel.expert", problem=problem, fix="Leave it out, or train a mixture that declares expert ranks."
    )


def wrong_expert(config: RunConfig, world: int) -> list[Fault]:
    """Return the reasons why ``parallel.expert`` does not fit the ranks, the model, or the rest of the layout."""
    size, experts, faults = config.parallel.expert, getattr(config.model.options, "n_experts", None), []
    if size == 1:
        return []
    if not experts and hasattr(config.model.options, "n_experts"):
        faults.append(no_experts())
    elif experts and experts % size:
        faults.append(undivided_experts(experts, size, most=world))
    if world % size:
        possible = [n for n in range(1, world + 1) if world % n == 0 and (not experts or experts % n == 0)]
        start = f"start {size} processes or a multiple of them (--nproc-per-node {size})"
        fix = f"Set --parallel.expert to one of {', '.join(map(str, possible))}, or {start}."
        what = "1 rank does" if world == 1 else f"{world} ranks do"
        faults.append(Fault(key="parallel.expert", problem=f"{what} not divide by {size}.", fix=fix))
    refused = [
        ("parallel.pipeline", "a pipeline", config.parallel.pipeline > 1, "1"),
        ("parallel.offload", config.parallel.offload, config.parallel.offload != "none", "none"),
        # How many rows of other ranks come hangs on what they choose, which no size that is tried alone can tell.
        ("train.micro-batch-size", "auto", config.train.micro_batch_size == "auto", "8 or another number"),
    ]
    for key, what, given, instead in refused:
        if given:
            problem = f"{what} does not work with expert ranks yet, which go with ZeRO 0 to 3 and --parallel.sequence."
            faults.append(Fault(key=key, problem=problem, fix=f"Set --{key} {instead}, or --parallel.expert 1."))
    return faults
