"""Both twins of the hot loops, encoding and decoding under one name each."""

from __future__ import annotations

from types import SimpleNamespace

from ingestd.records import (
    _decode_compiled,
    _decode_plain,
    _encode_compiled,
    _encode_plain,
    _intake_compiled,
    _intake_plain,
)


def joined(name, *modules):
    return SimpleNamespace(NAME=name, **{one: getattr(module, one) for module in modules for one in module.__all__})


COMPILED = joined("compiled", _encode_compiled, _intake_compiled, _decode_compiled)
PLAIN = joined("plain", _encode_plain, _intake_plain, _decode_plain)
