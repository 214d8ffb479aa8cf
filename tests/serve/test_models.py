"""What is served under which name: adapters side by side, and one begin token whatever the family and its template."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
from served import model_of, running

sys.path.insert(0, str(Path(__file__).parents[1] / "evals"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "convert"))

from adapter_folders import make_adapter
from harness_worlds import FAMILIES, write_llama

from mt_plugin_serve.chat import plan_chat
from mt_plugin_serve.command import _open, _parser
from mt_plugin_serve.completions import plan_completion
from mt_plugin_serve.limits import Limits
from mt_plugin_serve.models import Models, ServedModel
from mt_tools import generate, template_of
from mt_train import LoadedModel, load_adapters
from mt_train.config.texts import TEMPLATES

MESSAGES = [{"role": "user", "content": "Which one?"}]


def test_adapters_are_served_by_name_beside_the_weights(tmp_path: Path) -> None:
    """Requests of all three at a time: each text is that of its adapter alone, as mt-generate opens it."""
    write_llama(tmp_path / "base")
    for name, rank in (("one", 2), ("two", 4)):
        config = peft.LoraConfig(
            r=rank, lora_alpha=16 * rank, init_lora_weights=False, target_modules=["q_proj", "v_proj"]
        )
        make_adapter(tmp_path / "base", tmp_path / name, config)
    words = ["--weights", str(tmp_path / "base"), "--name", "base"]
    adapters = [f"--adapter={name}={tmp_path / name}" for name in ("one", "two")]
    with running(_open(_parser().parse_args([*words, *adapters]))) as server, ThreadPoolExecutor(6) as pool:
        assert [each["id"] for each in server.ask("GET", "/v1/models")[1]["data"]] == ["base", "one", "two"]
        names = ["base", "one", "two"] * 4
        found = list(pool.map(lambda name: server.complete(model=name, prompt="Which", temperature=0), names))
    texts = {name: each["choices"][0]["text"] for name, each in zip(names, found, strict=True)}
    assert [each["choices"][0]["text"] for each in found] == [texts[name] for name in names]
    assert len(set(texts.values())) == 3
    for name, text in texts.items():
        alone, several = load_adapters({} if name == "base" else {name: tmp_path / name}, weights=tmp_path / "base")
        several.use(None if name == "base" else name)
        assert generate(alone, "Which", greedy=True, max_new_tokens=16)[0].text == text


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp(request.param)
    FAMILIES[request.param](folder)
    return replace(load_adapters({}, weights=folder)[0], max_seq_len=4096)


def test_a_prompt_has_one_begin_token_at_most_whatever_the_template(family: LoadedModel) -> None:
    begin = family.tokenizer.bos_id
    for template in (None, *TEMPLATES):
        models = Models({"tiny": ServedModel("tiny", family, template_of(family, template))})
        plan = plan_chat({"model": "tiny", "messages": MESSAGES, "max_tokens": 1}, models, 1)
        ids = list(plan.texts[0].request.ids)
        assert begin not in ids[1:], template
        stops: Any = models.default.template.stop_ids
        assert set(stops) | set(family.eos_ids) <= set(plan.texts[0].request.end_ids), "it ends where its turns do"
    for prompt in ("Which", "<s>Which"):
        ids = list(plan_completion({"model": "tiny", "prompt": prompt}, models, 1).texts[0].request.ids)
        assert ids.count(begin) <= 1


def test_the_name_is_that_of_the_folder(tmp_path: Path) -> None:
    write_llama(tmp_path / "my-llama")
    models = _open(_parser().parse_args(["--weights", str(tmp_path / "my-llama")]))
    assert [model.name for model in models] == ["my-llama"]


def test_a_text_gets_as_many_tokens_as_fit_into_its_share_of_the_cache(loaded: LoadedModel) -> None:
    """With a cache of 100 places for a model of 128 tokens: a chat that names no number, and prompts up to the last place."""
    with running(model_of(loaded), cache_tokens=100) as server:
        assert server.ask("GET", "/v1/models")[1]["data"][0]["max_model_len"] == 101
        for wished in ({}, {"max_completion_tokens": 120}):
            found = server.chat("hi", logit_bias={str(loaded.eos_ids[0]): -100}, **wished)
            assert found["usage"]["total_tokens"] == 101
            assert found["choices"][0]["finish_reason"] == "length"
        assert server.complete(prompt=[1] * 100, max_tokens=9)["usage"]["completion_tokens"] == 1
        status, told, _ = server.ask("POST", "/v1/completions", {"model": "tiny", "prompt": [1] * 101})
        assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
        assert "has 101 tokens, and the model takes 101 here with the new ones" in told["error"]["message"]


def test_adapters_divide_the_cache_and_no_context_grows_by_it(loaded: LoadedModel) -> None:
    template = template_of(loaded, "chatml")
    models = Models({name: ServedModel(name, loaded, template, name) for name in ("a", "b")})
    assert [each.loaded.max_seq_len for each in models.within(Limits(cache_tokens=100))] == [51, 51]
    assert [each.loaded.max_seq_len for each in models.within(Limits(cache_tokens=10**6))] == [128, 128]
    assert models.within(Limits()) is models


def test_a_place_of_media_is_refused_where_the_model_has_learned_to_read_them(loaded: LoadedModel) -> None:
    """A model without encoders reads it as text like any other."""
    asked = {"prompt": "<image> hi", "max_tokens": 2}
    messages = [{"role": "user", "content": "<image> hi"}]
    for kinds, status in ((frozenset({"image"}), 400), (frozenset[str](), 200)):
        with running(model_of(replace(loaded, media_kinds=kinds))) as server:
            found = [
                server.ask("POST", "/v1/completions", {"model": "tiny", **asked}),
                server.ask("POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 2}),
            ]
        assert [each[0] for each in found] == [status, status]
        if status == 400:
            assert [each[1]["error"]["param"] for each in found] == ["prompt", "messages"]
            assert "<image> stands for media of this model" in found[0][1]["error"]["message"]
