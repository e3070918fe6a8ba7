"""What a user sees of a verb's end: one clear line and an exit code, never a traceback for what is not a defect."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ingestd import __version__
from ingestd.cli import configured
from ingestd.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = """
[clusters.local]
embedded = true
[tails.access]
paths = ["/var/log/access*.log"]
cluster = "local"
topic = "access"
"""


@pytest.fixture
def config(tmp_path: Path):
    def config(text: str = GOOD) -> str:
        file = tmp_path / "ingestd.toml"
        (tmp_path / "access.log").touch()
        text = text.replace("/var/log/", f"{tmp_path}/")
        file.write_text(f'[daemon]\nstate = "{tmp_path}/state"\n{text}')
        return str(file)

    return config


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ingestd {__version__}\n"


def test_the_module_is_the_command() -> None:
    answer = subprocess.run([sys.executable, "-m", "ingestd", "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == f"ingestd {__version__}\n"


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in ("run", "check", "broker", "topics", "groups", "metadata", "produce", "consume", "pipeline"):
        assert verb in shown


@pytest.mark.parametrize(
    ("verb", "table"), [(["topics", "list"], "[clusters.NAME]"), (["pipeline", "run"], "[pipelines.NAME]")]
)
def test_help_is_short_too_and_shows_the_names_of_tables(
    verb: list[str], table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb, "-h"]) == 0
    assert table in capsys.readouterr().out


def test_a_directory_in_place_of_lines_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "-t", "topic", "-b", "127.0.0.1:9", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"ingestd: {tmp_path}: Is a directory\n"


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["at the end", "at once"])
def test_a_reader_of_the_output_that_went_away_is_no_fault(config, unbuffered: str) -> None:
    # `ingestd check FILE | true`: what was printed is written at once, or when all is done.
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ingestd", "check", config()]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    answer = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writing)
    assert (answer.returncode, answer.stderr) == (0, b"")


def test_output_that_can_not_be_written_is_one_line(config) -> None:
    command = [sys.executable, "-m", "ingestd", "check", config()]
    with Path("/dev/full").open("wb") as full:
        environment = os.environ | {"PYTHONUNBUFFERED": ""}
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert answer.returncode == 1
    assert answer.stderr.startswith(b"ingestd: standard output: ")
    assert answer.stderr.count(b"\n") == 1


def test_an_unknown_verb_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    assert "rnu" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "verb"), [([], "consume"), (["topics"], "describe")])
def test_no_verb_is_misuse_and_shows_those_there_are(
    arguments: list[str], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert verb in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["produce", "-t", "x", "--acks", "5"], "'--acks': '5' is not one of 'all', '1', '0'"),
        (["produce", "-t", "x", "-p", "x"], "'--partition' / '-p': 'x' is not a valid integer"),
        (["consume", "-t", "x", "-n", "-3"], "'--count' / '-n': -3 is not in the range x>=0"),
        (["consume"], "Missing option '--topic' / '-t'"),
        (["topics", "create"], "Missing argument 'TOPIC...'"),
        (
            ["consume", "-t", "x", "-c", "10"],
            "10: no such file; expected a configuration. -n ends after so many",
        ),
    ],
)
def test_misuse_names_option_value_and_what_was_expected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_brokers_come_from_the_environment_unless_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTD_BROKERS", "a:1,b:1 a:b")
    assert main(["topics", "list"]) == 2
    assert "--brokers: 'a:b' is not HOST:PORT" in capsys.readouterr().err
    assert main(["topics", "list", "-b", "a:1", "--brokers", "a:c"]) == 2
    assert "--brokers: 'a:c' is not HOST:PORT" in capsys.readouterr().err


def test_a_broker_without_a_port_has_kafkas() -> None:
    bootstrap = configured.cluster_access(["kafka-1,kafka-2:9093", "[::1]", "[::1]:1"], None, None).bootstrap
    assert bootstrap == ("kafka-1:9092", "kafka-2:9093", "[::1]:9092", "[::1]:1")


def test_an_interrupted_verb_says_nothing(
    config: Callable[[], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(configured, "load_configuration", interrupted)
    assert main(["check", config()]) == 130
    assert capsys.readouterr() == ("", "")


def test_check_says_what_is_configured(config, capsys: pytest.CaptureFixture[str]) -> None:
    file = config()
    assert main(["check", file]) == 0
    assert capsys.readouterr().out == f"{file}: good (1 cluster, 1 tail)\n"
    assert not Path(file).with_name("state").exists()


def test_check_shows_every_fault_on_a_line_of_its_own(config, capsys: pytest.CaptureFixture[str]) -> None:
    file = config(GOOD + "lingr = 1\nlinger = 'x'\n[mirrored.a]\n")
    assert main(["check", file]) == 2
    seconds = "expected a finite number of seconds, as in 0.05, without quotes and unit"
    assert capsys.readouterr().err.splitlines() == [
        f'ingestd: {file}: tails.access.linger = "x": {seconds}',
        f"ingestd: {file}: tails.access.lingr = 1: unknown key; did you mean 'linger'?",
        f"ingestd: {file}: mirrored: unknown table; did you mean 'mirrors'?",
    ]


@pytest.mark.parametrize("text", ["", "workers = 1\n", "[tails]\n"])
@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_configuration_with_nothing_to_do_is_refused_with_what_is_expected(config, text, verb, capsys) -> None:
    file = config(text)
    assert main([verb, file]) == 2
    assert capsys.readouterr().err == (
        f"ingestd: {file}: nothing to do in it; expected [clusters.NAME], and what uses it, as [tails.NAME] does\n"
    )


def test_what_only_tools_use_is_a_good_configuration_and_none_to_run(config, capsys) -> None:
    file = config("[clusters.main]\nbootstrap = ['kafka-1:9092']\n")
    said = f"{file}: nothing to run; expected [tails.NAME], [mirrors.NAME], or an embedded cluster\n"
    assert main(["check", file]) == 0
    assert capsys.readouterr().err == f"ingestd: warning: {said}"
    assert main(["run", file]) == 2
    assert capsys.readouterr().err == f"ingestd: {said}"


@pytest.mark.parametrize(
    ("name", "options", "code"), [("SIGTERM", [], 0), ("SIGTERM", ["--once"], 1), ("SIGINT", [], 130)]
)
def test_a_signal_before_the_daemon_has_started_is_a_stop(
    tmp_path: Path, name: str, options: list[str], code: int
) -> None:
    """It comes while a module is imported, whose code would handle an exception. `--once` was to take something."""
    script = (
        "import os, signal, sys\n"
        "from ingestd.cli import configured\n"
        "from ingestd.cli.main import main\n"
        "def load(_):\n"
        "    try:\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "    except BaseException as error:\n"
        "        raise RuntimeError('half imported') from error\n"
        "configured.load_configuration = load\n"
        "sys.exit(main(['run', *sys.argv[1:]]))\n"
    )
    file = tmp_path / "ingestd.toml"
    file.touch()
    command = [sys.executable, "-c", script, *options, str(file)]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (code, b"")


def test_a_signal_after_the_run_does_not_change_its_status(tmp_path: Path) -> None:
    program = (
        "import os, sys; from ingestd.cli.main import main; code = main(); os.kill(os.getpid(), 15); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "run", str(tmp_path / "missing.toml")]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 2


def test_a_missing_configuration_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{tmp_path}/none.toml"]) == 2
    assert capsys.readouterr().err == f"ingestd: {tmp_path}/none.toml: no such file\n"


@pytest.mark.parametrize("verb", [["run"], ["check"], ["topics", "list", "-c"]])
def test_a_configuration_that_this_user_can_not_read_is_one_line(
    config, verb: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # click looked first, and said so in its own words: without `ingestd:`, which operators look for.
    def refused(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    file = config()
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Path, "read_bytes", refused)
    assert main([*verb, file]) == 2
    assert capsys.readouterr().err == f"ingestd: {file}: can not be read: Permission denied\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no brokers: expected --brokers HOST[:PORT], or --config FILE"),
        (["-b", "a:b"], "--brokers: 'a:b' is not HOST:PORT"),
        (["-b", "::1"], "--brokers: '::1' is not HOST:PORT; an IPv6 address stands in brackets, [HOST]:PORT"),
        (["-b", "a:1", "-m", "0"], "--timeout: 0; expected seconds, more than 0"),
        (["-b", "a:1", "-X", "linger"], "-X: expected NAME=VALUE"),
        (["-b", "a:1", "-s", "x"], "--unpack 'x': expected"),
        (["--cluster", "x"], "--cluster NAME: expected --config FILE as well"),
        (["-b", "a:1", "-c", "x.toml"], "--brokers and --config: expected one of them, not both"),
        (["-b", "a:1", "-o", "soon"], "offset 'soon': expected `beginning`, `end`"),
        (["-b", "a:1", "-p", "x"], "partitions 'x': expected numbers"),
        (["-b", "a:1", "-f", "%q"], "format '%q': '%q' is unknown"),
    ],
)
def test_a_consumer_told_wrongly_says_what_was_expected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INGESTD_BROKERS", raising=False)
    assert main(["consume", "-t", "x", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"ingestd: {message}")


def test_a_cluster_that_does_not_run_is_named(config, capsys: pytest.CaptureFixture[str]) -> None:
    file = config()
    assert main(["consume", "-t", "x", "-c", file]) == 2
    assert "clusters.local is embedded and does not run" in capsys.readouterr().err


@pytest.mark.parametrize("compression", ["zst", "zstd:high", "lz4:", "zstd:99"])
def test_a_codec_that_is_none_is_refused(compression: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "-t", "x", "-b", "a:1", "-z", compression]) == 2
    assert compression.split(":", maxsplit=1)[0] in capsys.readouterr().err


def test_input_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "-t", "x", "-b", "a:1", "/nowhere/lines"]) == 1
    assert capsys.readouterr().err == "ingestd: /nowhere/lines: No such file or directory\n"


def test_an_entry_that_is_only_imported_brings_nothing_in() -> None:
    program = "import sys, ingestd.cli.main; print([n for n in ('click', 'rich', 'aiohttp') if n in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [(KeyboardInterrupt, 130, ""), (EOFError, 1, "ingestd: the input ended before the question was answered")],
)
def test_a_prompt_that_gets_no_answer_ends_the_verb_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: type[BaseException],
    code: int,
    said: str,
) -> None:
    def asked(_prompt: str) -> str:
        raise end

    monkeypatch.setattr("click.termui.hidden_prompt_func", asked)
    assert main(["broker", "users", "add", "x", "--data", str(tmp_path / "d")]) == code
    told = capsys.readouterr()
    assert (told.out, told.err.strip().startswith(said)) == ("", True)
    assert len(told.err.split("\n")) <= 3  # the prompt's own line feed, and ours
    assert not (tmp_path / "d").exists()


def test_the_users_of_a_directory_that_is_not_there_are_not_listed_nor_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "mistyped"
    for verb in (["list"], ["remove", "x"]):
        assert main(["broker", "users", *verb, "--data", str(missing)]) == 2
        assert f"{missing}: no such directory" in capsys.readouterr().err
    assert not missing.exists()


def test_in_a_directory_that_is_no_brokers_nobody_is_listed_or_removed_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in (["list"], ["remove", "x"]):
        assert main(["broker", "users", *verb, "--data", str(tmp_path)]) == 2
        assert f"{tmp_path}: no broker was started there" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


def test_who_adds_a_user_is_told_where_and_that_the_directory_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET", "correct horse")
    data = tmp_path / "data"
    add = ["broker", "users", "add", "x", "--data", str(data), "--password", "@env:SECRET"]
    assert main(add) == 0
    assert capsys.readouterr().out == f"{data}/users.json: has user 'x', in a directory that is new\n"
    assert main(add) == 0
    assert capsys.readouterr().out == f"{data}/users.json: has user 'x'\n"


@pytest.mark.parametrize("verb", [["broker"], ["broker", "users", "add", "x", "--password", "@env:SECRET"]])
def test_a_file_where_a_data_directory_is_expected_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    monkeypatch.setenv("SECRET", "correct horse")
    (tmp_path / "file").touch()
    assert main([*verb, "--data", str(tmp_path / "file")]) == 1
    said = f"ingestd: {tmp_path}/file: it is a file; expected a directory, or a name for a new one\n"
    assert capfd.readouterr().err.endswith(said)
