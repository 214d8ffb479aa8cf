"""As much of ``llama-server`` as a check uses, written from its page (https://github.com/ggml-org/llama.cpp/tree/master/tools/server): the
file is read with transformers' reader, texts end at the ids that it names, and an end token is not among the tokens of an answer."""

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("-m", type=Path)
parser.add_argument("--host")
parser.add_argument("--port", type=int)
parser.add_argument("--no-webui", action="store_true")
parser.add_argument("--ctx-size", type=int)
parser.add_argument("--parallel", type=int)
given = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(given.m.parent, gguf_file=given.m.name, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(given.m.parent, gguf_file=given.m.name)
fields = GGUFReader(given.m).fields
ENDS = [
    int(fields[f"tokenizer.ggml.{key}_token_id"].contents())
    for key in ("eos", "eot")
    if f"tokenizer.ggml.{key}_token_id" in fields
]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({"status": "ok"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(self.complete(asked) if self.path == "/completion" else self.tokenize(asked))

    def complete(self, asked):
        assert asked["temperature"] == 0
        assert asked["return_tokens"]
        ids = torch.tensor([asked["prompt"]])
        wanted = {"do_sample": False, "max_new_tokens": asked["n_predict"], "eos_token_id": ENDS, "pad_token_id": 0}
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **wanted)[0, ids.shape[1] :].tolist()
        ended = found[-1] in ENDS
        return {"tokens": found[: len(found) - ended], "stop_type": "eos" if ended else "limit"}

    def tokenize(self, asked):
        return {"tokens": tokenizer(asked["content"], add_special_tokens=asked["add_special"])["input_ids"]}

    def reply(self, content):
        answer = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format, *values):
        """Keep quiet."""


HTTPServer((given.host, given.port), Handler).serve_forever()
