"""What a configuration file may say, and that everything else is refused by file, key, value and expectation."""

from __future__ import annotations

import pickle
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from ingestd.checks import parse_address
from ingestd.daemon.configuration import (
    Configuration,
    DaemonSettings,
    prepare_state,
)
from ingestd.daemon.configuration_file import load
from ingestd.daemon.fields import ClusterName, Expected, Topic
from ingestd.daemon.source import Claim
from ingestd.daemon.tables import FaultyConfiguration
from ingestd.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Multiline:
    pattern: str
    timeout: float = 1.0


@dataclass(frozen=True, slots=True)
class Prefix:
    prefix: str
    separator: str = "."


@dataclass(frozen=True, slots=True)
class Template:
    template: str
    length: int = 249


@dataclass(frozen=True, slots=True)
class ToyTail:
    """A route as the tail room writes one, with every shape of field."""

    name: str
    paths: tuple[str, ...]
    cluster: ClusterName
    topic: Topic
    exclude: tuple[str, ...] = ()
    compression: Literal["none", "lz4", "zstd"] = "none"
    level: int | None = None
    linger: Annotated[float, Expected("seconds, 0 or more", lambda seconds: seconds >= 0)] = 0.05
    batch_bytes: int = 65536
    start: Literal["beginning", "end"] | int = "beginning"
    multiline: Multiline | None = None
    steps: tuple[Prefix, ...] = ()
    naming: Literal["identity"] | Prefix | Template = "identity"
    rotation: Multiline = field(default_factory=lambda: Multiline("x"))

    def unfit(self, clusters: Any) -> list[tuple[str, str]]:
        return []

    @property
    def claims(self) -> list[Claim]:
        return [] if self.level is None else [Claim("level", self.level, f"level {self.level}")]


SECONDS = "expected a finite number of seconds, as in 0.05"
BYTES = "a whole number of bytes, as in 1048576"
KINDS: dict[str, Any] = {"tails": ToyTail}

GOOD = """
[daemon]
workers = 2
state = "/tmp/ingestd-state"
http = ""

[clusters.local]
embedded = true

[clusters.far]
bootstrap = ["kafka-1:9092", "[::1]:9092"]

[tails.access]
paths = ["/var/log/access*.log"]
cluster = "local"
topic = "access"
compression = "zstd"
linger = 1
multiline = { pattern = "^\\\\s" }

[pipelines.by-hour]
source = { cluster = "local", topics = ["access"] }
sink = { format = "parquet", path = "/data/access" }
"""


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str) -> Configuration:
        file = tmp_path / "ingestd.toml"
        file.write_text(text)
        return load(file, KINDS)

    return read


@pytest.fixture
def faults(read):
    """The faults of a file's text, each without the file's own path."""

    def faults(text: str) -> list[str]:
        with pytest.raises(FaultyConfiguration) as caught:
            read(text)
        for fault in caught.value.faults:
            assert str(fault).startswith(f"{fault.file}: ")
        assert str(caught.value) == "\n".join(map(str, caught.value.faults))
        return [str(fault).partition("ingestd.toml: ")[2] for fault in caught.value.faults]

    return faults


def with_tail(lines: str) -> str:
    return (
        f'[clusters.local]\nembedded = true\n[tails.access]\npaths = ["/a"]\ncluster = "local"\ntopic = "t"\n{lines}\n'
    )


def with_pipeline(lines: str) -> str:
    return f"[clusters.x]\nembedded = true\n[pipelines.p]\n{lines}\n"


def with_steps(steps: str) -> str:
    return with_pipeline(f"source={{cluster='x', topics=['t']}}\nsink={{path='/p'}}\nsteps=[{steps}]")


def test_a_good_file_becomes_values(read) -> None:
    configuration = read(GOOD)
    assert configuration.daemon == DaemonSettings(workers=2, state=Path("/tmp/ingestd-state"), http="")
    assert configuration.clusters["local"].embedded
    assert configuration.clusters["local"].data_directory(Path("/s")) == Path("/s/broker/local")
    assert configuration.clusters["far"].bootstrap == ("kafka-1:9092", "[::1]:9092")
    (route,) = configuration.routes
    assert route == ToyTail(
        "access",
        ("/var/log/access*.log",),
        "local",
        "access",
        compression="zstd",
        linger=1,
        multiline=Multiline("^\\s"),
    )
    assert isinstance(route.linger, float)
    assert read(with_tail("naming = {template = 't'}")).routes[0].naming == Template("t")
    pipeline = configuration.pipelines["by-hour"]
    assert (pipeline.source.topics, pipeline.sink.path, pipeline.sql) == (
        ("access",),
        "/data/access",
        None,
    )


def test_a_name_with_a_dot_needs_quotes_and_that_is_said_once(faults) -> None:
    """It was four faults: an unknown key, and three keys that are missing."""
    assert faults(
        with_tail("[tails.a.b]\npaths=['/b']\ncluster='local'\ntopic='t'\n[clusters.c.d]\nembedded=true")
    ) == [
        'clusters.c.d: a name with a dot needs quotes: [clusters."c.d"]',
        'tails.a.b: a name with a dot needs quotes: [tails."a.b"]',
    ]
    assert faults("[clusters.c.tls]\nverify='none'") == [
        'clusters.c.bootstrap: expected addresses, as in ["kafka-1:9092"], or `embedded = true`'
    ], "a table that a cluster has"


def test_an_empty_file_is_refused_with_what_is_expected(faults) -> None:
    assert faults("") == ["nothing to do in it; expected [clusters.NAME], and what uses it, as [tails.NAME] does"]
    assert faults("tail = 1") == ["tail: unknown table; did you mean 'tails'?"]


def test_what_is_not_given_has_the_defaults(read) -> None:
    configuration = read("[clusters.main]\nbootstrap = ['kafka-1:9092']")
    assert configuration.daemon == DaemonSettings()
    assert configuration.daemon.worker_count >= 1
    assert not configuration.routes


def test_a_configuration_pickles(read) -> None:
    configuration = read(GOOD)
    assert pickle.loads(pickle.dumps(configuration)) == configuration


def test_the_values_are_unpickled_without_what_reads_a_file(read, tmp_path: Path) -> None:
    configuration = read(GOOD)
    pickled = tmp_path / "pickled"
    pickled.write_bytes(pickle.dumps((configuration.daemon, configuration.clusters, configuration.pipelines)))
    program = (
        "import pickle, sys; pickle.load(open(sys.argv[1], 'rb')); "
        "print([name for name in ('pydantic', 'tomllib', 'aiohttp') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program, pickled], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            'compression = "zst"',
            "tails.access.compression = \"zst\": expected 'none', 'lz4' or 'zstd'; did you mean 'zstd'?",
        ),
        (
            'linger = "50ms"',
            'tails.access.linger = "50ms": expected a finite number of seconds, as in 0.05, without quotes and unit',
        ),
        ("batch_bytes = '1MB'", f'tails.access.batch_bytes = "1MB": expected {BYTES}, without quotes and unit'),
        ("batch_bytes = 1.5", f"tails.access.batch_bytes = 1.5: expected {BYTES}"),
        ("linger = true", "tails.access.linger = true: expected a finite number of seconds, as in 0.05"),
        ("linger = nan", "tails.access.linger = NaN: expected a finite number of seconds, as in 0.05"),
        ("linger = -1e999", "tails.access.linger = -Infinity: expected a finite number of seconds, as in 0.05"),
        ("exclude = [nan]", "tails.access.exclude[0] = NaN: expected a string"),
        ("linger = -1", "tails.access.linger = -1: expected seconds, 0 or more"),
        ("exclude = ['a', 7]", "tails.access.exclude[1] = 7: expected a string"),
        ("exclude = 'a'", 'tails.access.exclude = "a": expected an array, as in ["a"]'),
        ("exclude = [2020-01-01]", "tails.access.exclude[0] = 2020-01-01: expected a string"),
        ("level = 1.5", "tails.access.level = 1.5: expected a whole number"),
        ("start = 'now'", "tails.access.start = \"now\": expected 'beginning' or 'end' or a whole number"),
        ("compresion = 'lz4'", "tails.access.compresion = \"lz4\": unknown key; did you mean 'compression'?"),
        ("rotation = {patern = 'x'}", "tails.access.rotation.patern = \"x\": unknown key; did you mean 'pattern'?"),
        ("rotation = {}", "tails.access.rotation.pattern: missing, and has no default"),
        (
            "naming = 'idntity'",
            "tails.access.naming = \"idntity\": expected 'identity' or a table; did you mean 'identity'?",
        ),
        ("steps = [{prefix = 'a'}, {prefix = 7}]", "tails.access.steps[1].prefix = 7: expected a string"),
        ("steps = [{separator = ''}]", "tails.access.steps[0].prefix: missing, and has no default"),
        ("steps = [{prfix = ''}]", "tails.access.steps[0].prfix = \"\": unknown key; did you mean 'prefix'?"),
        ("steps = ['a']", 'tails.access.steps[0] = "a": expected a table'),
        ("naming = 7", "tails.access.naming = 7: expected 'identity' or a table"),
        ("naming = {template = 7}", "tails.access.naming.template = 7: expected a string"),
        ("naming = {template = '', length = 'x'}", 'tails.access.naming.length = "x": expected a whole number'),
        ("naming = {tmplate = ''}", "tails.access.naming.tmplate = \"\": unknown key; did you mean 'template'?"),
        ("name = 'x'", 'tails.access.name = "x": unknown key'),
        (
            "multi_line = 1",
            "tails.access.multi_line = 1: unknown key; lines are not joined: do that in what consumes the topic",
        ),
        ("filename_header = 'x'", 'tails.access.filename_header = "x": unknown key; tails add no headers'),
    ],
)
def test_a_wrong_key_of_a_route_is_refused_by_name(faults, line: str, fault: str) -> None:
    assert fault in faults(with_tail(line))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[daemon]\nworkers = -1", "daemon.workers = -1: expected 0 (one per core) to 256"),
        ("[daemon]\nwrokers = 1", "daemon.wrokers = 1: unknown key; did you mean 'workers'?"),
        ("[daemon]\nhttp = 'nowhere'", 'daemon.http = "nowhere": expected an address "HOST:PORT"'),
        ("[daemon]\narena_bytes = 1000", "daemon.arena_bytes = 1000: expected a multiple of 65536, at least 4194304"),
        ("daemon = 1", "daemon = 1: expected a table"),
        ("tails = 1", "tails = 1: expected a table"),
        ("[tails]\npaths = 1", "tails.paths = 1: expected a table"),
        ("[tial.x]", "tial: unknown table; did you mean 'tails'?"),
        ("[mirror.x]\nsource = 'a'", "mirror: unknown table"),
        (
            "[clusters.a]",
            'clusters.a.bootstrap: expected addresses, as in ["kafka-1:9092"], or `embedded = true`',
        ),
        (
            "[clusters.a]\nbootstrap = 'b:1,c:1'",
            'clusters.a.bootstrap = "b:1,c:1": expected an array, as in ["b:1", "c:1"]',
        ),
        (
            "[clusters.a]\nembedded = true\nbootstrap = ['b:1']",
            "clusters.a.embedded = true: expected `embedded = true` or `bootstrap`, not both",
        ),
        (
            "[clusters.a]\nbootstrap = ['b', 'c:1', ':1']",
            'clusters.a.bootstrap[2] = ":1": expected an address "HOST:PORT" with a port from 1 to 65535',
        ),
        (
            "[clusters.a]\nbootstrap = ['b:1']\nlisten = 'c:1'",
            'clusters.a.listen = "c:1": expected none, except in an embedded cluster',
        ),
        (
            "[clusters.a]\nembedded = true\nlisten = '0.0.0.0:9092'",
            'clusters.a.listen = "0.0.0.0:9092": expected 127.0.0.1, or `insecure = true` to let other machines in',
        ),
        ("[clusters.a]\nembedded = true\ntls = {}", "clusters.a.tls = (hidden): expected none, in an embedded cluster"),
        (
            "[clusters.'..']\nembedded = true",
            "clusters.\"..\": expected a name of letters, digits, '.', '_' and '-'",
        ),
        (
            "[clusters.local]\nembedded=true\n[tails.a]\npaths=['/a']\ncluster='lokal'\ntopic='t'",
            "tails.a.cluster = \"lokal\": no such [clusters.NAME] (local); did you mean 'local'?",
        ),
        (
            "[pipelines.p]\nsource={cluster='x', topics=[]}\nsink={path='/p'}",
            'pipelines.p.source.cluster = "x": no such [clusters.NAME] (none is configured)',
        ),
        (
            "[pipelines.p]\nsource={cluster='x', topics=[]}\nsink={path='/p'}",
            "pipelines.p.source.topics = []: expected at least one topic",
        ),
        (
            with_pipeline("source={cluster='x', topics=['t'], group='g'}\nsink={path='/p', mode='ignore'}"),
            'pipelines.p.sink.mode = "ignore": expected another one beside source.group',
        ),
        (
            with_pipeline("source={cluster='x', topics=['s,t']}\nsink={path='/p'}"),
            "pipelines.p.source.topics[0] = \"s,t\": expected 1 to 249 of letters, digits, '.', '_' and '-'",
        ),
        (
            with_pipeline(
                "source={cluster='x', topics=['t']}\nsink={path='/p'}\ncheckpoint='/c'\n"
                "[pipelines.q]\nsource={cluster='x', topics=['t']}\nsink={path='/q'}\ncheckpoint='file:///c/'"
            ),
            'pipelines.q.checkpoint = "file:///c/": [pipelines.p] has the same one, and neither would read all',
        ),
        (
            with_pipeline("source={cluster='x', topics=['s']}\nsink={format='topic'}"),
            "pipelines.p.sink.topic: expected one, or steps that make the column topic: rows would come back",
        ),
        (
            with_pipeline("source={cluster='x', topics=['s', 't']}\nsink={path='/p'}\ndead_letters='t'"),
            'pipelines.p.dead_letters = "t": expected a topic that the pipeline does not read: its letters would come',
        ),
        (
            with_pipeline("source={cluster='x', topics=['t'], start='latest'}\nsink={path='/p'}"),
            'pipelines.p.source.start = "latest": expected a checkpoint beside it: it is for streams',
        ),
        (
            with_pipeline("source={cluster='x', topics=['t']}\nsink={path='/p'}\ntrigger=5"),
            "pipelines.p.trigger = 5: expected a checkpoint beside it: it is for streams",
        ),
        (
            with_pipeline("source={cluster='x', topics=['t']}\nsink={path='/p'}\ntrigger='now'"),
            "pipelines.p.trigger = \"now\": expected a finite number of seconds, as in 0.05 or 'available-now'",
        ),
        (
            with_pipeline("source={cluster='x', topics=['t']}\nsink={format='topic', path='/p'}"),
            'pipelines.p.sink.path = "/p": expected none, for topic',
        ),
        (
            with_pipeline(
                "source={cluster='x', topics=['t']}\nsink={format='topic', cluster='y', delivery='exactly-once'}\n"
                "checkpoint='/c'\n[clusters.y]\nembedded=true"
            ),
            'pipelines.p.sink.cluster = "y": expected the source\'s cluster, for exactly-once',
        ),
        (
            with_pipeline("source={cluster='x', topics=['t']}\nsink={path='/p'}\nmax_trigger_delay=5"),
            "pipelines.p.max_trigger_delay = 5: expected a checkpoint beside it: it is for streams",
        ),
        (
            with_pipeline(
                "source={cluster='x', topics=['t']}\nsink={format='console'}\nmax_trigger_delay=5\ncheckpoint='/c'"
            ),
            "pipelines.p.max_trigger_delay = 5: expected none: it is for parquet and delta",
        ),
        (
            with_pipeline(
                "source={cluster='x', topics=['t']}\nsink={path='/p'}\nmax_trigger_delay=5\ncheckpoint='/c'\n"
                "trigger='available-now'"
            ),
            "pipelines.p.max_trigger_delay = 5: expected none beside available-now",
        ),
        (
            with_pipeline("source={}\nsink={path='/p'}"),
            "pipelines.p.source.topics: expected topics or files, and not both",
        ),
        (
            with_pipeline("source={cluster='x', topics=['t'], files=['/f']}\nsink={path='/p'}"),
            'pipelines.p.source.files = ["/f"]: expected topics or files, and not both',
        ),
        (
            with_pipeline("source={topics=['t']}\nsink={path='/p'}"),
            "pipelines.p.source.cluster: expected the cluster of",
        ),
        (
            with_pipeline("source={files=['/f'], group='g'}\nsink={path='/p'}"),
            'pipelines.p.source.group = "g": expected none, for files',
        ),
        (
            with_pipeline("source={files=['/f']}\nsink={path='/p'}\ncheckpoint='/c'"),
            'pipelines.p.checkpoint = "/c": expected none beside source.files: each run takes them all',
        ),
        (
            with_pipeline("source={files=['/f']}\nsink={format='topic', topic='t'}"),
            "pipelines.p.source.cluster: expected the cluster of the topic that is written",
        ),
        (
            with_pipeline("source={files=['/f']}\nsink={format='jdbc', url='jdbc:a:b'}"),
            "pipelines.p.sink.table: expected one, for jdbc",
        ),
        (
            with_pipeline("source={files=['/f']}\nsink={format='jdbc', url='postgres://b', table='t'}"),
            'pipelines.p.sink.url = "postgres://b": expected one that begins with jdbc:',
        ),
        (
            with_pipeline("source={files=['/f']}\nsink={format='jdbc', url='jdbc:a:b', table='t', jars=['/j']}"),
            "pipelines.p.sink.driver: expected the driver's class",
        ),
        (
            with_pipeline("source={files=['/f']}\nsink={path='/p', password='sesame'}"),
            "pipelines.p.sink.password = (hidden): expected none, for parquet",
        ),
        (
            with_steps("{}"),
            "pipelines.p.steps[0].sql: expected one of sql, python, parse, window, deduplicate, join in each step",
        ),
        (
            with_steps("{python = 'm:f', sql = 'SELECT 1'}"),
            'pipelines.p.steps[0].sql = "SELECT 1": expected one of sql, python, parse',
        ),
        (with_steps("{python = 'module'}"), 'pipelines.p.steps[0].python = "module": expected "MODULE:FUNCTION"'),
        (
            with_steps("{parse = {format = 'regex', columns = 'a STRING'}}"),
            "pipelines.p.steps[0].parse.pattern: expected a pattern for the format regex, and for no other",
        ),
        (
            with_steps("""{parse = {format = 'csv', columns = 'a STRING', delimiter = '"'}}"""),
            'pipelines.p.steps[0].parse.delimiter = "\\"": expected neither the quote nor the end of a line',
        ),
        (
            with_steps("{parse = {format = 'csv', columns = 'a STRING', delimiter = ';', escape = ';'}}"),
            'pipelines.p.steps[0].parse.escape = ";": expected another one than the delimiter',
        ),
        (
            with_steps("{parse = {format = 'json', columns = 'a STRING', delimiter = ';'}}"),
            'pipelines.p.steps[0].parse.delimiter = ";": expected none, for json',
        ),
        (
            with_steps("{parse = {format = 'json', columns = 'a STRING', null_text = '-'}}"),
            'pipelines.p.steps[0].parse.null_text = "-": expected none, for json',
        ),
        (
            with_steps("{window = {time = 't', size = '5m', aggregates = {n = 'count(*)'}}}"),
            'pipelines.p.steps[0].window.size = "5m": expected a time such as "5 minutes"',
        ),
        (
            with_steps("{window = {time = 't', size = '1 hour', slide = '61 minutes', aggregates = {n = 'count(*)'}}}"),
            'pipelines.p.steps[0].window.slide = "61 minutes": expected 1 hour at most, the size: else rows are in no',
        ),
        (
            with_steps("{parse = {format = 'regex', pattern = '(a)(b', columns = 'n INT'}}"),
            'pipelines.p.steps[0].parse.pattern = "(a)(b": expected a regular expression (missing ), unterminated',
        ),
        (
            with_steps("{parse = {format = 'regex', pattern = '(a)(b)', columns = 'n INT'}}"),
            'pipelines.p.steps[0].parse.pattern = "(a)(b)": expected as many groups as columns, 1; it has 2',
        ),
        (
            with_steps(r"{parse = {format = 'regex', pattern = '(\S+) \[([^\]]+)\] \[(\w+)\]', columns = 'n INT'}}"),
            "expected as many groups as columns, 1; it has 3",
        ),
        (
            with_steps(
                "{parse = {format = 'regex', pattern = '(a)(b)', "
                "columns = \"`a, b` INT COMMENT 'x, y', n DECIMAL(10, 2), s STRUCT<a: MAP<STRING, INT>, b: INT>\"}}"
            ),
            "expected as many groups as columns, 3; it has 2",
        ),
        (
            with_pipeline("source={cluster='x', topics=['s', 't']}\nsink={format='topic', topic='t'}"),
            'pipelines.p.sink.topic = "t": expected a topic that the pipeline does not read: rows would come back',
        ),
        *(
            (
                with_pipeline(f"source={{files=['/f']}}\nsink={{format='jdbc', url='{url}', table='t'}}"),
                "pipelines.p.sink.url = (hidden): expected one without a password, which plans and logs show",
            )
            for url in (
                "jdbc:postgresql://me:sesame@db/sales",
                "jdbc:postgresql://db:5432/sales?user=me&password=sesame",
                "jdbc:sqlserver://db:1433;user=me;Password=sesame",
                "jdbc:oracle:thin:scott/tiger@//db:1521/sales",
            )
        ),
        (
            with_steps("{join = {path = '/p', on = ['a'], format = 'csv'}}"),
            "pipelines.p.steps[0].join.columns: expected the columns of the table, which csv and json do not say",
        ),
        (with_tail("[tails.b]\npaths=['/a']\ncluster='local'\ntopic='a b'"), "tails.b.topic"),
        (
            with_tail("level = 1\n[tails.b]\npaths=['/b']\ncluster='local'\ntopic='u'\nlevel=1\nlinger='x'"),
            "tails.b.level = 1: [tails.access] takes level 1 too; expected one of its own",
        ),
        (with_tail("[tails.b]\npaths=[['/a']]"), 'tails.b.paths[0] = ["/a"]: expected a string'),
        ("[daemon]\nstate='~no such user/x'", "expected a path; its ~ stands for no user that has a home directory"),
        ("[daemon]\nstate='state'", 'daemon.state = "state": expected an absolute path, or one that begins with ~'),
        ("[daemon]\nstate=''", 'daemon.state = "": expected an absolute path, or one that begins with ~'),
        (
            "[clusters.x]\nembedded=true\ndata='./data'",
            'clusters.x.data = "./data": expected an absolute path, or one that begins with ~',
        ),
        (
            with_pipeline("source={cluster='x', topics=['t']}\nsink={path='/p'}\ncheckpoint='checkpoint'"),
            'pipelines.p.checkpoint = "checkpoint": expected an absolute path or a URI',
        ),
        (
            with_tail("[tails.b]\npaths=['/b']\ncluster='local'\ntopic='..'"),
            "tails.b.topic = \"..\": expected 1 to 249 of letters, digits, '.', '_' and '-', but not '.' or '..' alone",
        ),
        ("[tails]\npaths=['/a']", 'tails.paths = ["/a"]: expected a table; write [tails.NAME] above the keys of one'),
        ("[clusters.c]\ntopic = j5", "is not TOML: this is no value; text stands in quotes (at line 2, column 9)"),
        ("pipelines.p = {source=2020-01-01, sink=1}", "pipelines.p.source = 2020-01-01: expected a table"),
        ("a = ", "is not TOML"),
        (
            "a = 'x'\nb = \"y\nc = 1",
            r"Illegal character '\n' (at line 2, column 7); a closing quote may be missing in that line",
        ),
        (r'a = "\d"', r"Unescaped '\' in a string (at line 1, column 8); a regular expression stands in single quotes"),
        (
            "[clusters.a]\nbootstrap = ['kafka://b:9092']",
            'bootstrap[0] = "kafka://b:9092": expected an address "HOST:PORT" with a port from 1 to 65535, without kafka://',
        ),
        (
            "[clusters.a]\nbootstrap = ['b:1']\ntls = {insecure_skip_verify = true}",
            'insecure_skip_verify = true: unknown key; with `tls = {verify = "none"}` nothing is verified',
        ),
        ("[a]\nb = 1\nb = 2\nc = 3", "is not TOML: a key is there a second time (at line 3, column 6)"),
        ("[a.b]\n[a.b]", "is not TOML: [a.b] is there a second time (at line 2, column 5)"),
        (f"a = {'1' * 5000}", "is not TOML"),
        (f"a = {'[' * 5000}", "is not TOML"),
    ],
)
def test_a_wrong_table_is_refused_by_name(faults, text: str, fault: str) -> None:
    found = faults(text)
    assert any(fault in one for one in found), found


@pytest.mark.parametrize(
    "pattern",
    [
        r"(\d+) \p{Alpha}+ \(",
        r"\Q((\E(a)",
        "([a-z&&[^(]])",
        "(?<name>a)",
        "[(](a)(?:b)",
        "(?i)(a)",
        "(a)(?=b)",
    ],
)
def test_a_pattern_of_java_is_refused_only_where_python_reads_it_alike(read, pattern: str) -> None:
    """Without Spark nobody asks Java."""
    read(with_steps(f"{{parse = {{format = 'regex', pattern = '{pattern}', columns = 'n INT'}}}}"))


def test_a_url_without_a_password_is_taken(read) -> None:
    for url in ("jdbc:postgresql://db:5432/sales?ssl=true", "jdbc:oracle:thin:@//db:1521/s", "jdbc:mysql://me@db/x"):
        read(with_pipeline(f"source={{files=['/f']}}\nsink={{format='jdbc', url='{url}', table='t'}}"))


def test_every_fault_is_reported_at_once(faults) -> None:
    found = faults(
        with_tail("linger = 'x'\nlevel = 'y'\n[daemon]\nworkers = 'z'\n[mirrors.m]\n[clusters.far]\nbootstrap = [1]")
    )
    assert {fault.split(" ")[0].rstrip(":") for fault in found} == {
        "tails.access.linger",
        "tails.access.level",
        "daemon.workers",
        "mirrors",
        "clusters.far.bootstrap[0]",
    }


def test_no_secret_is_shown(faults) -> None:
    text = (
        "[clusters.a]\nbootstrap = ['http://me:hunter2@b:1x', 'me:hunter2@b:9092']\n"
        "sasl = {password = 'hunter2'}\npasword = 'x'\n"
        "password = 'hunter2'\nextra = {api_token = 'hunter2'}"
    )
    found = faults(text)
    assert "clusters.a.sasl.mechanism: missing, and has no default" in found
    assert "clusters.a.password = (hidden): unknown key" in found
    assert not any("hunter2" in fault for fault in found)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere.toml: no such file"):
        load(tmp_path / "nowhere.toml", KINDS)


def test_a_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a directory; expected a TOML file"):
        load(tmp_path, KINDS)


def test_binary_garbage_is_named(tmp_path: Path) -> None:
    file = tmp_path / "garbage"
    file.write_bytes(b"a = '\xff\xfe'")
    with pytest.raises(ConfigurationError, match="garbage: is not UTF-8 at byte 5"):
        load(file, KINDS)


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(with_tail("[daemon]\nworkers = 2"), "utf-8-sig")
    assert load(file, KINDS).daemon.workers == 2


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigurationError, match=r"x.toml: can not be read: Permission denied"):
        load(tmp_path / "x.toml", KINDS)


def test_the_state_directory_is_created_for_its_owner_only(tmp_path: Path) -> None:
    state = prepare_state(DaemonSettings(state=tmp_path / "new" / "state"))
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert prepare_state(DaemonSettings(state=state)) == state


def test_a_state_directory_that_can_not_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"daemon.state: .*file is not a directory"):
        prepare_state(DaemonSettings(state=tmp_path / "file"))
    with pytest.raises(ConfigurationError, match=r"daemon.state: .*below can not be created: Not a directory"):
        prepare_state(DaemonSettings(state=tmp_path / "file" / "below"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":1",
        "host",
        "host:",
        "host:x",
        "host:65536",
        "::1:9092",
        "host:\u0663",
        "kafka 2:9092",
        "u:secret@h:1",
        "[a]:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT") as raised:
        parse_address(text)
    assert "secret" not in str(raised.value)


def test_an_address_has_a_host_and_a_port() -> None:
    assert parse_address("[::1]:0") == ("::1", 0)
    assert parse_address("a.b:65535") == ("a.b", 65535)


def test_the_address_of_an_embedded_broker_is_what_the_running_daemon_published(read, tmp_path: Path) -> None:
    configuration = read(GOOD.replace("/tmp/ingestd-state", str(tmp_path)))
    assert configuration.bootstrap("far") == ("kafka-1:9092", "[::1]:9092")
    with pytest.raises(ConfigurationError, match=r"clusters.local is embedded and does not run; `ingestd run"):
        configuration.bootstrap("local")
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "local.address").write_text("127.0.0.1:4711\n")
    assert configuration.bootstrap("local") == ("127.0.0.1:4711",)
    with pytest.raises(ConfigurationError, match=r"no such \[clusters.NAME\]: nowhere \(local, far\)"):
        configuration.bootstrap("nowhere")


def test_a_trigger_that_makes_small_files_is_warned_of(read) -> None:
    text = "source={cluster='x', topics=['t']}\ncheckpoint='/c'\ntrigger=5.0\nsink="
    pipelines = {
        sink: read(with_pipeline(text + sink)).pipelines["p"] for sink in ("{path='/p'}", "{format='console'}")
    }
    assert [list(each.warnings()) for each in pipelines.values()] == [
        ["trigger: with 5 s the sink gets many small files; 60 s or more has fewer"],
        [],
    ]
