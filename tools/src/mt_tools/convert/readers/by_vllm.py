"""Continue prompts with vLLM, which reads an adapter as its server does."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Answer one request."""
    asked = json.load(sys.stdin)
    import vllm
    from vllm.lora.request import LoRARequest

    base = asked["base"]
    adapted = {"enable_lora": True, "max_lora_rank": asked["rank"]} if base else {}
    model = vllm.LLM(model=base or asked["folder"], enforce_eager=True, trust_remote_code=False, **adapted)
    params = vllm.SamplingParams(
        temperature=0.0, max_tokens=asked["most"], stop_token_ids=asked["ends"] if base else None
    )
    found = model.generate(
        [{"prompt_token_ids": row} for row in asked["rows"]],
        params,
        lora_request=LoRARequest("checked", 1, asked["folder"]) if base else None,
    )
    outputs = [each.outputs[0] for each in found]
    answers = [{"ids": list(each.token_ids), "ended": each.finish_reason == "stop"} for each in outputs]
    tokenizer = model.get_tokenizer()
    texts = None if tokenizer is None else [list(tokenizer(text)["input_ids"]) for text in asked["texts"]]
    print(json.dumps({"version": f"vLLM {vllm.__version__}", "answers": answers, "texts": texts}))


if __name__ == "__main__":
    main()
