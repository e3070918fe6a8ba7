"""config/REFERENCE.md, made from the settings classes: `python tests/evidence/reference.py` writes it anew."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter

from ingestd.cli.configured import route_kinds
from ingestd.daemon.configuration_file import file_class

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PAGE", "render", "tables"]

PAGE = Path(__file__).resolve().parents[2] / "config" / "REFERENCE.md"
OPENING = """\
# Configuration

One TOML file. Every key is checked before anything starts, and what is wrong is named: `ingestd check FILE`. A key
that is not here is refused. Times are in seconds, sizes in bytes. A secret is a table that says where it is kept; or,
less well, a string. `ingestd example NAME` writes an example, one for each use.

This page is made from the settings classes (`make reference`); a test holds it to them.
"""
WIDTH = 120
_KEPT = "\0"
"""A blank at which no line ends."""
TYPES = {"boolean": "true or false", "integer": "integer", "number": "seconds", "object": "table", "string": "string"}


def tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every table of the file with its JSON schema: sections in their order, each followed by the tables in it."""
    adapter = TypeAdapter(list[file_class(route_kinds())], config=ConfigDict(use_attribute_docstrings=True))  # type: ignore[misc]
    schemas = adapter.json_schema()["$defs"]
    seen: set[str] = set()

    def of(title: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if name not in seen:
            seen.add(name)
            yield title, schemas[name]
            for key, value in schemas[name]["properties"].items():
                for inner in _classes(value):
                    yield from of("A secret" if inner == "Secret" else f"{title} {key}", inner)
                for inner in _classes(value.get("items", {})):
                    yield from of(f"{title} {key}", inner)

    for section, value in schemas["File"]["properties"].items():
        named = value.get("additionalProperties")
        yield from of(f"[{section}.NAME]" if named else f"[{section}]", *_classes(named or value))


def _classes(value: dict[str, Any]) -> list[str]:
    return [each["$ref"].rpartition("/")[2] for each in value.get("anyOf", [value]) if "$ref" in each]


def _takes(value: dict[str, Any]) -> str:
    several = [each for each in value.get("anyOf", ()) if each.get("type") != "null"]
    if several:
        return "secret" if "Secret" in _classes(value) else " or ".join(dict.fromkeys(map(_takes, several)))
    choices = value.get("enum") or ([value["const"]] if "const" in value else [])
    if choices:
        return ", ".join(f"`{each}`" for each in choices)
    if value.get("type") == "array" and "$ref" in value["items"]:
        return "tables"
    if value.get("type") == "array":
        return "strings" + (f", each {value['items']['expected']}" if "expected" in value["items"] else "")
    return str(value.get("expected") or value.get("format") or TYPES[value.get("type", "object")])


def _default(value: Any) -> str:
    return f"{value:_}" if type(value) is int else json.dumps(value)


def render() -> str:
    """The whole page."""
    lines = [OPENING]
    for title, schema in tables():
        summary = schema["description"].partition("\n\n")[0]
        purpose = summary.partition("`: ")[2] or summary
        lines += [f"## `{title}`", "", purpose[0].upper() + purpose[1:], ""]
        for key, value in schema["properties"].items():
            if key != "name":
                lines += _key(key, value, required=key in schema.get("required", []))
        lines.append("")
    return "\n".join(lines)


def _key(key: str, value: dict[str, Any], *, required: bool) -> list[str]:
    """A list's item: what the key takes and its default, and below that what it means."""
    default = value.get("default")
    given = "must be given" if required else "" if default is None else f"by default `{_default(default)}`"
    takes = f"- **`{key}`**: " + "; ".join(filter(None, (_takes(value).replace("<", r"\<"), given))) + "."
    return [*_wrapped(takes, "  "), *_wrapped("  " + value.get("description", ""), "  ")]


def _wrapped(text: str, indent: str) -> list[str]:
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", _KEPT), text)
    lines = textwrap.wrap(whole, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_KEPT, " ") for line in lines]


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"written: {PAGE}")
