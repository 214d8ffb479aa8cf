"""mt-serve beside ``transformers serve``, plain and with continuous batching: tokens per second, and the time to the first token.

    python benchmarks/serve.py [--repeats 2] [--requests 64] [--clients 8] [--device cpu] [--out benchmarks/results/serve.json]

A Llama of 25M random parameters, whose tokenizer has no end token, so that each answer has all its tokens. Prompts of 16 to 256 tokens,
answers of 64, greedy, streamed over HTTP by as many clients. The servers take turns, each started anew and warmed by two requests, with
``OMP_NUM_THREADS`` threads each. ``same_texts`` counts the answers that are, word by word, those of the first server that was asked. It
needs ``pip install httpx 'transformers[serving]'``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

WORDS, LONGEST = 8192, 1024
NEW = 64


def write_model(folder: Path) -> None:
    """25M parameters, and a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0", pad_token="w0")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
    }
    shape |= {
        "num_key_value_heads": 4,
        "vocab_size": WORDS,
        "max_position_embeddings": LONGEST,
        "initializer_range": 0.1,
    }
    model = LlamaForCausalLM(LlamaConfig(**shape, bos_token_id=None, eos_token_id=None, tie_word_embeddings=True))
    print(f"{sum(each.numel() for each in model.parameters()) / 1e6:.1f}M parameters", file=sys.stderr)
    model.save_pretrained(folder)


def commands(folder: Path, port: int, device: str) -> dict[str, list[str]]:
    """Server → its command. ``mt-serve`` takes the GPU that it sees."""
    theirs = "import sys; from transformers.cli.transformers import main; sys.argv[0] = 'transformers'; main()"
    transformers = [sys.executable, "-c", theirs, "serve", str(folder), "--port", str(port)]
    transformers += ["--dtype", "float32", "--device", device]
    mt = [sys.executable, "-m", "mt_plugin_serve.command", "--weights", str(folder), "--port", str(port)]
    return {
        "mt-serve": [*mt, "--name", str(folder)],
        "transformers serve": transformers,
        "transformers serve --continuous-batching": [*transformers, "--continuous-batching"],
    }


def prompts(count: int) -> list[str]:
    chance = random.Random(1)
    return [" ".join(f"w{chance.randrange(WORDS)}" for _ in range(chance.randint(16, 256))) for _ in range(count)]


async def ask(client: httpx.AsyncClient, model: str, prompt: str) -> tuple[float, list[str]]:
    """Return the seconds to the first text, and the words that came."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": NEW, "stream": True}
    body["temperature"] = 0
    began, first, text = time.perf_counter(), 0.0, ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError((await answer.aread()).decode()[:500])
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            choices = json.loads(line[6:]).get("choices") or [{}]
            piece = (choices[0].get("delta") or {}).get("content")
            if piece:
                first = first or time.perf_counter() - began
                text += piece
    return first, text.split()


def processor_seconds(process: int) -> float:
    """Return the processor time of a process and its threads: what a machine that others use does not change."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int, process: int, model: str, texts: Sequence[str], clients: int) -> dict[str, Any]:
    """Ask for all, so many at a time. ``texts`` of the result are the words of each answer."""
    left, found = iter(enumerate(texts)), dict[int, tuple[float, list[str]]]()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
        for text in texts[:2]:
            await ask(client, model, text)

        async def work() -> None:
            for place, text in left:
                found[place] = await ask(client, model, text)

        began, used = time.perf_counter(), processor_seconds(process)
        await asyncio.gather(*(work() for _ in range(clients)))
        seconds, used = time.perf_counter() - began, processor_seconds(process) - used
    waits, words = sorted(first for first, _ in found.values()), sum(len(said) for _, said in found.values())
    if words < 0.95 * NEW * len(texts):
        raise RuntimeError(f"{words} words came of {NEW * len(texts)}")
    return {
        "tokens_per_second": NEW * len(texts) / seconds,
        "tokens_per_processor_second": NEW * len(texts) / used,
        "first_p50": waits[len(waits) // 2],
        "first_p95": waits[int(0.95 * len(waits))],
        "texts": [said for _, (_, said) in sorted(found.items())],
    }


def measure(command: Sequence[str], port: int, model: str, texts: Sequence[str], clients: int) -> dict[str, Any]:
    """Start a server, ask it, and end it."""
    with tempfile.TemporaryFile() as said, subprocess.Popen(command, stdout=said, stderr=said) as server:
        try:
            wait(port, server)
            return asyncio.run(load(port, server.pid, model, texts, clients))
        except (RuntimeError, httpx.HTTPError) as error:
            said.seek(0)
            return {"error": f"{type(error).__name__}: {error}", "said": said.read()[-1500:].decode(errors="replace")}
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def wait(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise RuntimeError(f"ended with {server.returncode}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError("did not begin to answer")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    rows, wanted = list[dict[str, Any]](), list[list[str]]()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "llama"
        write_model(model)
        names = given.only or list(commands(model, 0, given.device))
        for repeat in range(given.repeats):
            for name in names if repeat % 2 == 0 else names[::-1]:
                port = free_port()
                row = measure(
                    commands(model, port, given.device)[name], port, str(model), prompts(given.requests), given.clients
                )
                said = row.pop("texts", [])
                wanted = wanted or said
                same = sum(one == other for one, other in zip(said, wanted, strict=False))
                rows.append({"server": name, "repeat": repeat, **row, "same_texts": same})
                print(json.dumps(rows[-1]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
