"""config/REFERENCE.md, made from the settings classes: `python tests/evidence/reference.py` writes it anew."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path

from ingestd.daemon.configuration import (
    ClusterSettings,
    DaemonSettings,
    PipelineSettings,
    PipelineSink,
    PipelineSource,
)
from ingestd.daemon.security import SaslSettings
from ingestd.mirror.route import MirrorRoute
from ingestd.tail.route import TailRoute
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

__all__ = ["PAGE", "keys_of", "render"]

PAGE = Path(__file__).resolve().parents[2] / "config" / "REFERENCE.md"
TABLES: tuple[tuple[str, type, str], ...] = (
    ("[daemon]", DaemonSettings, "The processes, their state, how they show themselves."),
    ("[clusters.NAME]", ClusterSettings, "A Kafka cluster (`bootstrap`), or one that the daemon runs (`embedded`)."),
    (
        "[clusters.NAME] tls",
        TlsSettings,
        "TLS with a cluster's brokers. What is read from files is read anew when they change.",
    ),
    ("[clusters.NAME] sasl", SaslSettings, "The account of this host at a cluster's brokers."),
    (
        "A secret",
        Secret,
        "A table with one of these keys, so that the secret is not in the configuration; or, less well, a string.",
    ),
    ("[tails.NAME]", TailRoute, "Files, line by line, into a topic."),
    ("[mirrors.NAME]", MirrorRoute, "Topics of one cluster into another."),
    ("[pipelines.NAME]", PipelineSettings, "Topics, through SQL, to files, on Spark."),
    ("[pipelines.NAME] source", PipelineSource, "What a pipeline reads."),
    ("[pipelines.NAME] sink", PipelineSink, "Where a pipeline writes."),
)
OPENING = """\
# Configuration

One TOML file. Every key is checked before anything starts, and what is wrong is named: `ingestd check FILE`. A key
that is not here is refused. Times are in seconds, sizes in bytes. `ingestd example NAME` writes an example,
one for each use.

This page is made from the settings classes (`make reference`); a test holds it to them.
"""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table: what it takes, its default in TOML (None: it must be given), what it means."""

    name: str
    takes: str
    default: str | None
    meaning: str


def keys_of(settings: type) -> list[Key]:
    """The keys of a settings class, in order, with the docstrings that follow its fields."""
    body = ast.parse(textwrap.dedent(inspect.getsource(settings))).body[0]
    assert isinstance(body, ast.ClassDef)
    keys = []
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id == "name":
            continue
        documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        meaning = " ".join(str(following.value.value).split()) if documented else ""  # type: ignore[union-attr]
        default = None if node.value is None else _as_toml(node.value)
        keys.append(Key(node.target.id, _takes(node.annotation), default, meaning))
    return keys


def _takes(annotation: ast.expr) -> str:
    text = ast.unparse(annotation)
    if text.startswith("Literal["):
        return ", ".join(f"`{choice}`" for choice in ast.literal_eval(text.removeprefix("Literal").replace("'", '"')))
    plain = text.replace(" | None", "")
    named = {
        "str": "string",
        "Path": "path",
        "int": "integer",
        "float": "seconds",
        "bool": "boolean",
        "Secret | str": "secret",
    }
    return named.get(plain, "strings" if plain.startswith("tuple[str") else "table")


def _as_toml(written: ast.expr) -> str:
    if isinstance(written, ast.BinOp):
        return f"{eval(compile(ast.Expression(written), 'default', 'eval')):,}".replace(",", "_")
    text = ast.unparse(written)
    if text == "None" or text.startswith("field(default=None"):
        return ""
    if text.startswith("field(default_factory=dict"):
        return "{}"
    if text.startswith("Path("):
        text = text.removeprefix("Path(").removesuffix(")")
    if text.startswith("("):
        return "[" + ", ".join(f'"{each}"' for each in ast.literal_eval(text)) + "]"
    return {"True": "true", "False": "false"}.get(text, text.replace("'", '"'))


def render() -> str:
    """The whole page."""
    parts = [OPENING]
    for table, settings, purpose in TABLES:
        rows = [f"\n## `{table}`\n\n{purpose}\n\n| key | takes | default | meaning |\n|---|---|---|---|\n"]
        for key in keys_of(settings):
            default = "must be given" if key.default is None else f"`{key.default}`" if key.default else ""
            meaning = key.meaning.replace("|", "\\|")
            rows.append(f"| `{key.name}` | {key.takes} | {default} | {meaning} |\n")
        parts.append("".join(rows))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"written: {PAGE}")
