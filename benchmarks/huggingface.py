"""Forward and backward of the family ``huggingface`` on a Llama, beside ``mt-plugin-llama`` on the same weights.

    taskset --cpu-list 0 python benchmarks/huggingface.py [--pairs 20] [--packed]

Both are in one process, alternate, and are timed by the processor time of one thread; their losses must agree to 1e-5 before anything
is printed. Printed are the ratio of medians and of the least, and what each keeps for the backward (bytes of saved tensors).
Beside ``transformers.Trainer``: ``python benchmarks/train_step.py --type mistral --family huggingface``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

SEQUENCE, ROWS, WIDTH = 256, 4, 256
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
NATIVE = {
    "name": "llama",
    "dim": WIDTH,
    "n_layers": 6,
    "n_heads": 4,
    "n_kv_heads": 2,
    "ffn_dim": 704,
    "vocab_size": 1024,
}
NATIVE |= {"max_seq_len": 512, "rope_theta": 10_000.0, "norm_eps": 1e-6}
DOCUMENTS = (60, 70, 126)


def build(model: dict[str, Any]) -> Any:
    from mt_core.plugins.host import PluginHost
    from mt_train.assemble.parts import Parts
    from mt_train.plugins.resolve import resolve

    return (
        Parts.of(resolve({"model": model, "train": {"sequence_len": SEQUENCE}}, PluginHost.discover())).model().train()
    )


def models() -> dict[str, Any]:
    """Both with the same random weights."""
    import torch

    native, other = build(NATIVE), build({"name": "huggingface", "config": SHAPE})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in native.parameters():
            parameter.fill_(1.0) if parameter.dim() == 1 else parameter.normal_(0, 0.02, generator=generator)
    other.load_state_dict(native.state_dict())
    return {"llama": native, "huggingface": other}


def batch(packed: bool) -> Any:
    import torch

    from mt_core.nn import TokenObjective
    from mt_core.rows import Sample

    lengths = DOCUMENTS if packed else (SEQUENCE,)
    generator = torch.Generator().manual_seed(1)
    rows = [
        [
            Sample(torch.randint(3, 1000, (length,), generator=generator).tolist(), [True] * length, "row")
            for length in lengths
        ]
        for _ in range(ROWS)
    ]
    return TokenObjective().collate(rows, length=SEQUENCE).with_index()


def step(model: Any, rows: Any) -> float:
    """Loss of a forward, after its backward."""
    from torch.nn.functional import cross_entropy

    hidden = model(rows)
    loss = cross_entropy(model.head(hidden.flatten(0, 1)), rows.labels.flatten(), ignore_index=-100)
    loss.backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)
    return float(loss.detach())


def kept_bytes(model: Any, rows: Any) -> int:
    """Bytes of the tensors that a forward keeps for its backward, each storage once."""
    from torch.autograd.graph import saved_tensors_hooks

    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    found: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(rows).sum().backward()
    model.zero_grad(set_to_none=True)
    return sum(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="alternating pairs of steps")
    parser.add_argument("--packed", action="store_true", help="three documents in a row")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    both, rows = models(), batch(options.packed)
    native, other = (step(model, rows) for model in both.values())
    assert abs(native - other) < 1e-5 * native, f"the two compute different things: {native} and {other}"
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for number in range(options.pairs):
        for name in sorted(both, reverse=bool(number % 2)):
            begun = time.process_time()
            step(both[name], rows)
            seconds[name].append(time.process_time() - begun)
    median, least = (pick(seconds["llama"]) / pick(seconds["huggingface"]) for pick in (statistics.median, min))
    memory = kept_bytes(both["huggingface"], rows) / kept_bytes(both["llama"], rows)
    print(
        f"tokens a processor second beside llama: {median:.3f} (of the least times {least:.3f}); kept for the backward: {memory:.3f}"
    )


if __name__ == "__main__":
    main()
