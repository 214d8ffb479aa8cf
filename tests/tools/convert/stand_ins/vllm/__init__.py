"""As much of vLLM's offline interface as a check uses, written from its documentation
(https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm/): the model is transformers', and an adapter is multiplied by vLLM's own rule
(``vllm/lora/peft_helper.py``: ``lora_alpha / r`` for all layers, over √r with rsLoRA; patterns are read over)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

__version__ = "0.32.0 (stand-in)"


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 16
    stop_token_ids: list[int] | None = None


class LLM:
    def __init__(
        self,
        model: str,
        *,
        enforce_eager: bool,
        trust_remote_code: bool,
        enable_lora: bool = False,
        max_lora_rank: int = 16,
    ) -> None:
        assert not trust_remote_code
        self._folder, self._lora, self._most = model, enable_lora, max_lora_rank
        self._model = AutoModelForCausalLM.from_pretrained(model)

    def get_tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._folder)

    @torch.no_grad()
    def generate(self, prompts: list[dict[str, Any]], params: SamplingParams, *, lora_request: Any = None) -> list[Any]:
        if lora_request is not None:
            assert self._lora
            self._add(Path(lora_request.lora_path))
        ends = self._model.generation_config.eos_token_id
        listed = {*(ends if isinstance(ends, list) else [ends]), *(params.stop_token_ids or ())}
        return [self._continue(each["prompt_token_ids"], params, listed) for each in prompts]

    def _continue(self, prompt: list[int], params: SamplingParams, ends: set[int | None]) -> Any:
        assert params.temperature == 0
        ids = torch.tensor([prompt])
        stops = sorted(each for each in ends if each is not None)
        wanted = {"do_sample": False, "max_new_tokens": params.max_tokens, "eos_token_id": stops, "pad_token_id": 0}
        new = self._model.generate(ids, attention_mask=torch.ones_like(ids), **wanted)[0, len(prompt) :].tolist()
        finish = "stop" if new[-1] in ends else "length"
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=new, finish_reason=finish)])

    def _add(self, folder: Path) -> None:
        config = json.loads((folder / "adapter_config.json").read_text())
        found = load_file(folder / "adapter_model.safetensors")
        assert config["r"] <= self._most, "vLLM refuses larger ranks"
        factor = config["lora_alpha"] / (sqrt(config["r"]) if config["use_rslora"] else config["r"])
        for name, a_RE in found.items():
            if name.endswith("lora_A.weight"):
                layer = self._model.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
                layer.weight += factor * found[name.replace("lora_A", "lora_B")] @ a_RE
