"""``python tests/huggingface/write_types.py`` writes ``types.json`` of the huggingface plugin: what it knows of each model type.

A small model of each type is built with transformers and run once; where its layers are, what stands before and behind the blocks
and what its keys are called is read off it. That the family then computes what transformers does is for the tests.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.integrations.heterogeneity.configuration_utils import (
    AmbiguousGlobalPerLayerAttributeError as PerLayer,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mt_core import UsageError
from mt_plugin_huggingface.experts import are_experts
from mt_plugin_huggingface.rotary import use_document_lengths

sys.path.insert(0, str(Path(__file__).parent))

import tiny_models

TABLE = Path(__file__).parents[2] / "plugins/huggingface/src/mt_plugin_huggingface/types.json"

NAMES = {
    "vocab_size": ("vocab_size",),
    "max_seq_len": ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length"),
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers_block_type"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
}
EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}
"""Keys of the number of experts."""
WITHOUT = {"max_seq_len": 2**20, "n_heads": 1}
"""Numbers that some types do not have, and what counts then: rows of any length, whose layers are divided by no heads."""

TRAINED = (
    "arcee biogpt bitnet cohere cohere2 ctrl cwm diffllama ernie4_5 exaone4 gemma gemma2 gemma3_text glm glm4 gpt-sw3 gpt2 gpt_bigcode"
    " gpt_neox granite helium hunyuan_v1_dense hyperclovax internlm3 iquestcoder jais2 llama ministral ministral3 mistral"
    " modernbert-decoder nanochat nemotron olmo olmo2 olmo3 opt persimmon phi phi3 qwen2 qwen3 seed_oss smollm3 stablelm starcoder2"
    " vaultgemma"
)
"""Types to try: dense, attention through transformers' interface, no state beside keys and values."""

MIXTURES = (
    "afmoe beam cohere2_moe dots1 ernie4_5_moe exaone_moe flex_olmo glm4_moe granitemoe granitemoeshared hunyuan_v1_moe hy_v3 jetmoe"
    " kolibri1 laguna mellum minimax_m2 minimax_m3_vl_text mixtral olmoe phimoe qwen2_moe qwen3_moe solar_open"
)
"""Mixtures of experts to try."""

OTHER_ATTENTION = (
    "axk1 deepseek_v2 deepseek_v3 flint glm4_moe_lite gpt_oss granite_swa granitemoe_swa llama4_text longcat_flash mimo_v2_flash minicpm3"
    " youtu"
)
"""Types to try, whose attention has sinks, chunks, or values of another width than keys; most are mixtures."""

WITH_SAVED_BUFFERS = "apertus gemma4_unified_text"
"""Dense types whose files have numbers that nothing trains."""

WITH_A_STATE = (
    "bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 lfm2_moe lfm3 mamba mamba2 minimax nemotron_h olmo_hybrid"
    " qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma"
)
STATE = "its layers carry a state through the row, so that documents in a row would see each other"
"""Types to try, whose layers have a state, and why their rows are padded and whole."""

BY_TOKEN = "falcon_mamba jamba mamba recurrent_gemma"
"""Types whose blocks begin anew where they are given a state and several tokens."""

MODULE_STATES = {"recurrent_gemma": ["temporal_block.conv1d_state", "temporal_block.rg_lru.recurrent_states"]}
"""Type → attributes of a block in which its modules keep a state themselves."""

WITH_OWN_ATTENTION = "bloom codegen falcon gpt_neo gpt_neox_japanese gptj mpt xglm"
OWN_ATTENTION = "its attention is its own, which knows of no documents in a row"
"""Types to try, whose attention does not go through transformers' interface, and why their rows are padded and whole."""

REFUSED = {
    "its layers hand a state on in a form of its own, which no cache here holds": "rwkv xlstm",
    OWN_ATTENTION: "bailing_hybrid cpmant deepseek_v4 doge inkling2_text inkling_text openai-gpt",
    "its attention is sparse, by an index over all pairs of tokens": "axk2 deepseek_v32 dots3_note dots3_note_text glm_moe_dsa hy_v4",
    "its blocks are no list of layers": "gemma3n_text gemma4_text hrm_text zamba zamba2 zaya",
    "nobody has tried it here": "blt cohere_compass_text dbrx qwen4_exp qwen4_exp_text",
    "it reads images; its language model alone is its text_config, put in the place of config.json": "qwen3_5 qwen3_5_moe",
    "it reads images or sound, or is one half of another model": "aria_text llama4 emu3 fuyu git got_ocr2 gemma3 gemma3n gemma4"
    " gemma4_unified gemma4_assistant gemma4_unified_assistant mllama moshi moss_transcribe_diarize musicgen musicgen_melody "
    "phi4_multimodal mistral3 bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart prophetnet trocr whisper",
    "it is an encoder that was made to decode": "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert"
    " rembert roberta roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xlnet xmod reformer",
}
"""Reason → types. What was found out about each: see the plugin's README."""


def entry(kind: str) -> dict[str, Any]:
    """What the plugin has to know of a type. Raises ``ValueError`` with the reason where it cannot be trained."""
    model = tiny_models.model(kind)
    config = model.config
    names = {ours: key for ours, keys in NAMES.items() if (key := _key(config, ours, keys))}
    plain = CONFIG_MAPPING[kind]()
    paths = {id(module): path for path, module in model.named_modules()}
    embed, head = paths[id(model.get_input_embeddings())], paths[id(model.get_output_embeddings())]
    blocks = blocks_of(model)
    norm = _norm(model, paths, blocks)
    before_head = before(model, norm, head)
    inside = tuple(f"{path}." for path in (embed, blocks, norm, head, before_head) if path)
    outside = {name.rpartition(".")[0] for name, _ in model.named_parameters() if not name.startswith(inside)}
    if len(outside) > 1:
        raise ValueError(f"{', '.join(sorted(outside))} belong to no layer")
    tuple_size = _tuple_size(model, blocks)
    found: dict[str, Any] = {
        "architecture": type(model).__name__,
        "names": names,
        "defaults": {ours: _number(getattr(plain, names[ours])) if ours in names else WITHOUT[ours] for ours in NAMES},
        "embed": embed,
        "blocks": blocks,
        "norm": norm,
        "head": head,
        "plain_head": is_plain(model, head, before_head) and takes_norm_as_it_is(model, before_head or norm, head),
    }
    if before_head:
        found["before_head"] = before_head
    if outside:
        found["positions"] = outside.pop()
    if kind in WITH_OWN_ATTENTION.split():
        found["own_attention"] = True
    if tuple_size:
        found["tuple_size"] = tuple_size
    if kind in BY_TOKEN.split():
        found["by_token"] = True
    if read := read_weights(model, blocks):
        found["read_weights"] = read
    if kind in MODULE_STATES:
        found["module_states"] = MODULE_STATES[kind]
    if any(rotary_by_length(kind, scaling) for scaling in tiny_models.BY_LENGTH):
        found["rotary_by_length"] = True
    if scales_ids(model):
        found["scales_ids"] = True
    if scales_in_place(model, blocks):
        found["scales_in_place"] = True
    if hasattr(config, "floor_scale"):
        found["counts_rows"] = "floor_scale"
    if padding := padding_of(kind):
        found["padding"] = padding
    if needed := needed_ids(kind):
        found["needed_ids"] = needed
    for kinds, reason in ((WITH_A_STATE, STATE), (WITH_OWN_ATTENTION, OWN_ATTENTION)):
        if kind in kinds.split():
            found["limits"] = {"packing": reason, "sequence": reason}
    if has_other_experts(model):
        found.setdefault("limits", {})["expert"] = (
            "its experts are of its own code, which expert ranks, adapters and quantizers leave whole"
        )
    return found


def _number(value: Any) -> Any:
    return len(value) if isinstance(value, list) else value  # of the kinds of its layers


def _key(config: Any, ours: str, names: tuple[str, ...]) -> str | None:
    written = config.to_dict()
    found = next((name for name in names if name in written), None)
    if found is None and ours not in WITHOUT:
        raise ValueError(f"its config has none of {', '.join(names)}")
    return found


def blocks_of(model: nn.Module) -> str:
    """Path of the longest list of what transformers does not split."""
    unsplit = set(getattr(model, "_no_split_modules", None) or ())
    lists = [(path, each) for path, each in model.named_modules() if isinstance(each, nn.ModuleList) and len(each)]

    def score(found: tuple[str, nn.ModuleList]) -> tuple[bool, bool, int]:
        kinds = {type(each).__name__ for each in found[1]}
        return bool(kinds & unsplit), bool(re.search(r"(^|\.)(layers|h|blocks)$", found[0])), len(found[1])

    return max(lists, key=score)[0]


def _tuple_size(model: nn.Module, blocks: str) -> int:
    """Return the length of the tuple that a block returns, 0 where it returns hidden states."""
    sizes: list[int] = []
    block = model.get_submodule(f"{blocks}.0")
    hook = block.register_forward_hook(
        lambda module, inputs, output: sizes.append(len(output) if isinstance(output, tuple) else 0)
    )
    _run(model, [hook])
    return sizes[0]


def _run(model: nn.Module, hooks: Iterable[RemovableHandle], rows: int = 1, length: int = 8) -> Any:
    """Run a model on some tokens, with hooks that are removed then, and return what it gives."""
    with torch.no_grad():
        output = model(torch.randint(3, 90, (rows, length)), use_cache=False)
    for hook in hooks:
        hook.remove()
    return output


def rotary_by_length(kind: str, scaling: str) -> bool:
    """Return whether a type may have this rotary scaling, and lays its positions out as the plugin does."""
    if not isinstance(getattr(tiny_models.config_of(kind), "rope_parameters", None), dict):
        return False
    try:
        model = tiny_models.model(kind, rope=scaling)
        use_document_lengths(model)
    except (
        UsageError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
        StrictDataclassError,
        PerLayer,
    ):
        return False
    return any(getattr(each, "rope_type", None) == scaling for each in model.modules())


def scales_ids(model: nn.Module) -> bool:
    """Return whether embedded tokens are another thing to the model than their ids."""
    ids = torch.randint(3, 90, (1, 8))
    with torch.no_grad():
        by_ids = model(ids, use_cache=False).logits
        return not torch.equal(by_ids, model(inputs_embeds=model.get_input_embeddings()(ids), use_cache=False).logits)


def padding_of(kind: str) -> str | None:
    """Say what ``pad_token_id`` changes in a folder that transformers opens: the token's "embedding", or another table, by "positions"."""
    pad, ids = 5, torch.arange(3, 11)[None]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        tiny_models.model(kind).save_pretrained(folder)
        models = []
        for number in (4, pad):
            config = Path(folder, "config.json")
            config.write_text(json.dumps({**json.loads(config.read_text()), "pad_token_id": number}))
            models.append(AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval())
        if torch.equal(*(each(ids, use_cache=False).logits for each in models)):
            return None
        rows = [each.get_input_embeddings().weight[pad] for each in models]
    return "positions" if torch.equal(*rows) else "embedding"


def needed_ids(kind: str) -> list[str]:
    """Return the special ids without which transformers makes no config of this type."""
    needed = []
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        try:
            CONFIG_MAPPING[kind](**{name: None})
        except StrictDataclassError:
            needed.append(name)
    return needed


def _norm(model: nn.Module, paths: dict[int, str], blocks: str) -> str:
    """Path of the module behind the last block, which takes what that gives and gives what the decoder does."""
    decoder, last = (
        model.get_submodule(blocks.partition(".")[0]),
        model.get_submodule(f"{blocks}.{tiny_models.LAYERS - 1}"),
    )
    outputs: dict[str, tuple[Tensor, Tensor]] = {}
    given: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            outputs[paths[id(module)]] = (inputs[0], output)

    hooks = [each.register_forward_hook(keep) for each in model.modules()]
    hooks.append(last.register_forward_hook(lambda module, inputs, output: given.append(_first(output))))
    result = _run(decoder, hooks).last_hidden_state
    found = [
        path for path, (before, after) in outputs.items() if _is_same(before, given[0]) and _is_same(after, result)
    ]
    if len(found) != 1:
        raise ValueError(f"behind its blocks stands no norm alone: {found}")
    return found[0]


def _first(output: Any) -> Tensor:
    """Hidden states, which some blocks return in a tuple; that nothing else in it counts, the tests find out."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def _is_same(one: Tensor, other: Tensor) -> bool:
    """GPT-2 makes a view of what its norm gives."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape


def is_plain(model: nn.Module, head: str, before_head: str | None) -> bool:
    """Return whether the language model's forward does nothing to logits but call the head, after the module before it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(type(model).forward))))
    targets = [
        (each, node) for node in ast.walk(tree) for each in getattr(node, "targets", [getattr(node, "target", None)])
    ]
    assigned = [node for each, node in targets if isinstance(each, ast.Name) and each.id == "logits"]
    states = rf"hidden_states(\.to\(self\.{head}\.weight\.dtype\))?"
    states = rf"self\.{before_head}\({states}\)" if before_head else states
    call = re.compile(rf"logits = self\.{head}\({states}\)(\.contiguous\(\)|\.float\(\))?")
    return len(assigned) == 1 and call.fullmatch(ast.unparse(assigned[0])) is not None


def before(model: nn.Module, norm: str, head: str) -> str | None:
    """Path of the module that takes what the norm gives, and gives what the head takes; ``None`` where there is none."""
    given: dict[str, tuple[Any, Any]] = {}

    def keep(path: str) -> Any:
        return lambda module, inputs, output: given.update({path: (inputs[0] if inputs else None, output)})

    _run(model, [each.register_forward_hook(keep(path)) for path, each in model.named_modules()])
    ends = given[norm][1].data_ptr(), given[head][0].data_ptr()
    tensors = {path: each for path, each in given.items() if all(isinstance(side, Tensor) for side in each)}
    found = [path for path, each in tensors.items() if tuple(side.data_ptr() for side in each) == ends and path != norm]
    return found[0] if found else None


def read_weights(model: nn.Module, blocks: str) -> list[str]:
    """Last names of linear layers in blocks that are not called in training."""
    called: set[str] = set()
    layers = [(name, each) for name, each in model.get_submodule(blocks).named_modules() if isinstance(each, nn.Linear)]
    hooks = [each.register_forward_hook(lambda *_, name=name: called.add(name)) for name, each in layers]
    model.train()
    _run(model, hooks, rows=2, length=24)
    model.eval()
    return sorted({name.rpartition(".")[2] for name, _ in layers if name not in called})


def scales_in_place(model: nn.Module, blocks: str) -> bool:
    """Return whether the decoder changes the embedded tokens that it is given."""
    embedded = torch.randn(1, 4, model.get_input_embeddings().weight.shape[1])
    before = embedded.clone()
    with torch.no_grad():
        model.get_submodule(blocks.partition(".")[0])(inputs_embeds=embedded, use_cache=False)
    return not torch.equal(embedded, before)


def has_other_experts(model: nn.Module) -> bool:
    """Return whether it has experts in one tensor that are not mt_core's, so that ranks cannot divide them."""
    if not any(key in EXPERTS for key in model.config.to_dict()):
        return False
    modules = [each for each in model.modules() if not isinstance(each, nn.Conv1d) and not are_experts(each)]
    shapes = [each.shape for module in modules for each in module.parameters(recurse=False)]
    return any(sum(size > 1 for size in shape) > 2 for shape in shapes)


def takes_norm_as_it_is(model: nn.Module, norm: str, head: str) -> bool:
    """Return whether nothing is done to hidden states between the norm and the head."""
    given: list[Tensor] = []
    hooks = [
        model.get_submodule(norm).register_forward_hook(lambda module, inputs, output: given.append(output)),
        model.get_submodule(head).register_forward_pre_hook(lambda module, inputs: given.append(inputs[0])),
    ]
    _run(model, hooks)
    before, after = given
    return torch.equal(before.flatten(), after.flatten())


def main() -> None:
    """Write the table."""
    types, refused = {}, {kind: reason for reason, kinds in REFUSED.items() for kind in kinds.split()}
    for kind in sorted(
        " ".join((TRAINED, MIXTURES, OTHER_ATTENTION, WITH_SAVED_BUFFERS, WITH_A_STATE, WITH_OWN_ATTENTION)).split()
    ):
        try:
            types[kind] = entry(kind)
        except ValueError as error:
            refused[kind] = str(error)
            print(f"{kind}: {error}")
    missing = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(types) - set(refused)
    print("not looked at:", sorted(missing))
    content = {
        "transformers": transformers.__version__,
        "types": dict(sorted(types.items())),
        "refused": dict(sorted(refused.items())),
    }
    TABLE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{len(types)} types, {len(refused)} refused")


if __name__ == "__main__":
    main()
