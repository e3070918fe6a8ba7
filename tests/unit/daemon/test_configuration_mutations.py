"""Thousands of configurations with slips in them: each is taken, or refused in plain words, and no secret is shown."""

from __future__ import annotations

import copy
import datetime as dt
import random
import tomllib
from typing import TYPE_CHECKING, Any

from ingestd.cli.configured import route_kinds
from ingestd.daemon import configuration_file
from ingestd.daemon.configuration_file import load
from ingestd.daemon.tables import FaultyConfiguration

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from ingestd.daemon.tables import Fault

HIDDEN = "hunter2"
JARGON = (HIDDEN, "Input ", "dataclass", "pydantic", "\0")
GOOD = tomllib.loads(f"""
[daemon]
workers = 2
arena_bytes = 67108864
restart_backoff = 0.5
log_level = "info"
[clusters.near]
embedded = true
data = "/d"
[clusters.far]
bootstrap = ["k:1", "l:2"]
tls = {{ certificate_file = "/c", key_file = "/k", key_password = {{ value = "{HIDDEN}" }}, verify = "full" }}
[clusters.far.sasl]
mechanism = "OAUTHBEARER"
token_endpoint = "https://id.test/token"
client_id = "me"
client_secret = "{HIDDEN}"
extensions = {{ a = "b" }}
[clusters.third]
bootstrap = ["k:1"]
sasl = {{ mechanism = "SCRAM-SHA-512", username = "u", password = {{ value = "{HIDDEN}" }} }}
[tails.a]
paths = ["/a/*", "/b"]
cluster = "near"
topic = "t"
batch_bytes = 500000
max_line_bytes = 400000
key_pattern = "(x)"
partition = "key"
[tails.b]
paths = ["/c"]
cluster = "far"
topic = "u"
linger = 0.1
[mirrors.m]
source = "near"
target = "far"
topics = ["a", "b-.*"]
start = "2026-01-31T08:00:00Z"
[pipelines.p]
source = {{ cluster = "near", topics = ["t"] }}
sink = {{ path = "/o" }}
""")
VALUES: list[Any] = [True, False, 0, 1, -1, 2**70, 1.5, float("nan"), float("inf"), "", "x", "near", "PLAIN", "key"]
VALUES += ["/a/*", "(", "1s", "~nobody/x", [], ["x"], [1], [["a"]], {}, {"file": "/q"}, {"a": 1}, dt.date(2020, 1, 1)]
KEYS = ["name", "delivery", "password", "embedded", "listen", "tls", "topic", "paths", "[key]", "a b", "Secret"]


def places(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for key, value in table.items():
        yield table, key
        if isinstance(value, dict):
            yield from places(value)


def with_slips(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    content = copy.deepcopy(GOOD)
    for _ in range(chance.randint(1, 5)):
        table, key = chance.choice(list(places(content)))
        match chance.randrange(5):
            case 0 | 1:
                table[key] = copy.deepcopy(chance.choice(VALUES))
            case 2:
                del table[key]
            case 3:
                table[key[:-1] + chance.choice("xyz_")] = table.pop(key)
            case 4:
                table[chance.choice(KEYS)] = copy.deepcopy(chance.choice(VALUES))
    return content


def faults(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Fault, ...]:
    monkeypatch.setattr(configuration_file, "_parse", lambda _: content)
    try:
        load("ingestd.toml", route_kinds())
    except FaultyConfiguration as faulty:
        return faulty.faults
    return ()


def test_a_file_with_slips_is_refused_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    file = configuration_file.file_class(route_kinds())
    monkeypatch.setattr(configuration_file, "file_class", lambda _: file)  # its validators are made once
    assert faults(GOOD, monkeypatch) == ()
    refused = 0
    for seed in range(2000):
        found = faults(with_slips(seed), monkeypatch)
        refused += bool(found)
        for fault in found:
            assert fault.key, (seed, fault)
            assert fault.problem.startswith(("expected ", "unknown ", "missing, ", "no such ", "[")), (seed, fault)
            said = str(fault)
            assert not [word for word in (HIDDEN, "Input ", "dataclass", "pydantic", "\0") if word in said], (
                seed,
                said,
            )
        assert len(set(found)) == len(found), (seed, found)
    assert refused > 1500
