"""What looks like a secret is shown nowhere, and what only resembles one is."""

from __future__ import annotations

import hashlib
import json
import random
import string
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from mt_core.config.secrets import HIDDEN, is_secret, redact, redact_values
from mt_core.errors import ConfigError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.discovery import discover_plugins
from mt_train.config.secrets import redact_config, secret_keys
from mt_train.plugins.resolve import resolve

LETTERS = string.ascii_letters + string.digits
Draw = Callable[[int], str]


def draw_from(seed: int, alphabet: str = LETTERS) -> Draw:
    rng = random.Random(seed)
    return lambda count: "".join(rng.choice(alphabet) for _ in range(count))


def shapes(seed: int) -> dict[str, str]:
    """One secret of every shape, from its issuer's documentation; none is anybody's."""
    any_, hex_, upper = (
        draw_from(seed),
        draw_from(seed, "0123456789abcdef"),
        draw_from(seed, string.ascii_uppercase + "234567"),
    )
    block = "\n".join(any_(64) for _ in range(3))
    return {
        "Hugging Face": f"hf_{any_(34)}",
        "GitHub": f"ghp_{any_(36)}",
        "GitHub, fine-grained": f"github_pat_{any_(22)}_{any_(59)}",
        "GitLab": f"glpat-{any_(20)}",
        "GitLab, deploy": f"gldt-{any_(20)}",
        "Slack": f"xoxb-{draw_from(seed, string.digits)(12)}-{any_(24)}",
        "Slack, app": f"xapp-1-{any_(11)}-{any_(24)}",
        "OpenAI": f"sk-proj-{any_(48)}",
        "Anthropic": f"sk-ant-api03-{any_(60)}",
        "Google": f"AIza{any_(35)}",
        "Google, OAuth": f"ya29.{any_(60)}",
        "npm": f"npm_{any_(36)}",
        "PyPI": f"pypi-AgEIcHlwaS5vcmc{any_(80)}",
        "AWS": f"AKIA{upper(16)}",
        "AWS, temporary": f"ASIA{upper(16)}",
        "Stripe": f"sk_live_{any_(24)}",
        "Databricks": f"dapi{hex_(32)}",
        "DigitalOcean": f"dop_v1_{hex_(64)}",
        "SendGrid": f"SG.{any_(22)}.{any_(43)}",
        "JSON Web Token": f"eyJ{any_(30)}.eyJ{any_(60)}.{any_(43)}",
        "RSA": f"-----BEGIN RSA PRIVATE KEY-----\n{block}\n-----END RSA PRIVATE KEY-----",
        "PKCS 8": f"-----BEGIN PRIVATE KEY-----\n{block}\n-----END PRIVATE KEY-----",
        "OpenSSH": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{block}\n-----END OPENSSH PRIVATE KEY-----",
    }


ADDRESSES = {
    "user and password": "https://me:{}@host/x",
    "password with signs": "postgres://me:a@{}@host:5432/x",
    "password alone": "redis://:{}@host",
    "token": "https://{}@host/x.git",
    "token, by git": "git+https://{}@host/x.git@main",
    "token in the query": "https://host/x?token={}&a=b",
    "signature": "https://host/x?se=2026&sig={}",
    "signature of S3": "https://host/x?a=b&X-Amz-Signature={}&c=d",
    "token of S3": "https://host/x?X-Amz-Security-Token={}",
    "key": "https://host/x?key={}",
    "key of an interface": "https://host/x?API_KEY={}#top",
    "hook of Slack": "https://hooks.slack.com/services/T00000000/B00000000/{}",
}
AROUND = ("{}", "({})", "'{}'", '"{}",', "a {} b", "key={}", "key: {}\n", "/data/{}/rows", "<{}>", "«{}»", "-H {} -X")
SECRET = draw_from(7)(24)


@pytest.mark.parametrize("seed", range(5))
def test_every_shape_is_hidden_wherever_it_stands(seed: int) -> None:
    for kind, secret in shapes(seed).items():
        for around in AROUND:
            assert redact(around.format(secret)) == around.format(HIDDEN), kind


@pytest.mark.parametrize("kind", ADDRESSES)
def test_a_secret_in_an_address_is_hidden_and_its_host_is_shown(kind: str) -> None:
    address = ADDRESSES[kind].format(SECRET)
    shown = redact(f"cannot fetch {address}: 404")
    assert SECRET not in shown
    assert HIDDEN in shown
    assert "//host" in shown or "@host" in shown or "//hooks" in shown
    assert shown.endswith(": 404")
    assert list(secret_keys({"dataset": {"path": [address]}})) == ["dataset.path.0"]


PLAIN = [
    "a token is 3 bytes, a password none, and its key a column",
    "https://host:8080/x?page=2&tokens=512&sort_by=key",
    "ssh://git@host/x.git and git@host:x.git, postgres://reader@host/rows",
    "abfss://container@account.dfs.core.windows.net/rows",
    "hdfs://name-node:8020/rows/@latest/x@y",
    "mail me@host.org: https://host/@me/x",
    "task-specific-and-rather-long-name desk-lamps-are-not-risk-free-things-here",
    "hf_hub hf_home npm_config ghp_ glpat- sk- AKIA AIza eyJ eyJhbGciOiJub25lIn0",
    "scikit-learn==1.5.0 sk-learn torch==2.5.1+cpu llama-3.1-8b-instruct",
    "/home/me/.cache/huggingface/hub/models--org--name/snapshots/main/model-00001-of-00002.safetensors",
    "xoxo-loves AKIAs and ASIAN dapifaces SG.1.2",
    "step-00000002 rank-0.log events.out.tfevents.1700000000.host.123.0",
    "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "authorization: none, bearer of news",
    hashlib.sha1(b"x").hexdigest(),
    hashlib.sha256(b"x").hexdigest(),
    str(uuid.UUID(int=3**80)),
    "model.layers.0.self_attn.q_proj.weight [PAD] <|begin_of_text|> key=value; a=b",
]


@pytest.mark.parametrize("text", PLAIN)
def test_ordinary_text_is_shown(text: str) -> None:
    assert redact(text) == text


def test_random_hashes_and_paths_are_shown() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        digest = hashlib.sha256(rng.randbytes(8)).hexdigest()
        for text in (digest, digest[:40], digest[:12], f"/data/{digest[:7]}/rows-{rng.randrange(10**9)}.jsonl"):
            assert redact(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "MY_SERVICE_KEY",
        "DEPLOY_PAT",
        "APP_SECRET",
        "DB_PASSWORD",
        "DB_PWD",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "apiKey",
    ],
)
@pytest.mark.parametrize("value", ["correct-horse-battery", "p\"a's\\s & <wörd> %", "Zm9vYmFyYmF6"])
def test_values_of_the_environment_are_hidden_however_they_are_written(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    if " " in value and name.endswith(("_KEY", "_PAT", "_PWD")) and "ACCESS" not in name:
        value = value.replace(" ", "")
    monkeypatch.setenv(name, value)
    assert redact(f"with {value}.") == f"with {HIDDEN}."
    assert redact(f"with {value!r}") in (f"with '{HIDDEN}'", f'with "{HIDDEN}"')
    assert redact(json.dumps({"a": value})) == json.dumps({"a": HIDDEN}, ensure_ascii=False)
    assert redact_values({"a": [value, 3, None], value: ("x",)}) == {"a": [HIDDEN, 3, None], HIDDEN: ["x"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SSH_KEY", "/home/me/.ssh/id"),
        ("PWD", "/home/me"),
        ("MAX_TOKENS", "100000000"),
        ("SORT_KEY", "12345678"),
        ("HF_TOKEN_PATH", "/home/me/token-file"),
    ],
)
def test_paths_and_numbers_of_the_environment_are_shown(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert redact(f"with {value}") == f"with {value}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sort_key", "created_at"),
        ("prompt_key", "question"),
        ("pad_token", "[PAD]"),
        ("eos_token", "</s>"),
        ("add_tokens", ["a"]),
        ("n_heads", 4),
        ("key", "id"),
        ("max_tokens", 512),
        ("pattern", "a1b2c3d4e5f6g7"),
        ("keyboard", "a1b2c3d4e5f6g7"),
    ],
)
def test_columns_and_special_tokens_are_no_secrets(key: str, value: Any) -> None:
    assert not is_secret(key, value)
    assert redact_config({key: value}) == {key: value}


@pytest.mark.parametrize("key", ["service_key", "deploy_pat", "db_pwd", "auth", "SAS"])
def test_what_is_random_under_the_name_of_a_key_is_a_secret(key: str) -> None:
    assert redact_config({key: SECRET}) == {key: HIDDEN}


@cache
def host() -> PluginHost:
    return discover_plugins()


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "model.weights": lambda s: {"model": {"name": "kit-tiny", "weights": s}},
    "tokenizer.path": lambda s: {"tokenizer": {"name": "huggingface", "path": s}},
    "dataset.path": lambda s: {"dataset": {"name": "jsonl", "path": s}},
    "data.system": lambda s: {"data": {"system": f"Use {s}."}},
    "data.eval": lambda s: {"data": {"eval": f"/x/{s}"}},
    "data.cache": lambda s: {"data": {"cache": s}},
    "callbacks.upload.url": lambda s: {"callbacks": [{"name": "upload", "url": f"s3://{s}"}]},
    "trackers.x.file": lambda s: {"trackers": {"x": {"file": s}}},
    "checkpoint.best": lambda s: {"checkpoint": {"best": s}},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_config_with_a_secret_is_refused_and_the_message_does_not_repeat_it(kit_model: None, place: str) -> None:
    secrets = [*shapes(1).values(), *(address.format(SECRET) for address in ADDRESSES.values())]
    for secret in secrets if place == "dataset.path" else secrets[::5]:
        raw = {"model": {"name": "kit-tiny"}, **PLACES[place](secret)}
        with pytest.raises(ConfigError) as refused:
            resolve(raw, host())
        assert f"{place}: looks like a secret, and configs are saved" in str(refused.value)
        assert secret not in str(refused.value)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:pass@host/x", "https://•••@host/x"),
        ("hf_" + "aB3" * 10 + "!", "•••!"),
        ("sk-" + "x" * 24, "•••"),
        ("AKIA" + "A" * 16, "•••"),
        ("a token is 3 bytes, a password none", "a token is 3 bytes, a password none"),
        ("https://host:8080/x", "https://host:8080/x"),
    ],
)
def test_well_known_shapes_are_secrets_and_ordinary_text_is_not(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_a_short_value_of_the_environment_does_not_garble_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HF_TOKEN", "the")
    assert redact("the end") == "the end"
