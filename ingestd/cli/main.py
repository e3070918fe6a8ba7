"""Entry of the `ingestd` command: runs a verb, turns what went wrong into one clear line and an exit code.

Exit codes: 0 done; 1 it could not be done; 2 the command line or the configuration is wrong; 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Final, TextIO

from ingestd import imports
from ingestd.errors import ConfigurationError, IngestdError
from ingestd.output import unhindered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

__all__ = ["main"]

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
_NO_ANSWER: Final = IngestdError("the input ended before the question was answered; nothing was done")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (None: this process's); the exit code."""
    # Importing makes some 100,000 objects that stay: looking through them again and again is a tenth of a verb's start.
    gc.set_threshold(100_000)
    # To look for its plugins, pydantic reads what all installed packages say of themselves: a tenth of a start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    imports.own_process = True
    _open_what_is_closed()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] != ["run"]:
        return _run_verb(given)
    # Until the daemon listens to signals itself, there is nothing to drain.
    codes = {signal.SIGTERM: FAILED if "--once" in given else 0, signal.SIGINT: INTERRUPTED}
    before = {number: signal.signal(number, partial(_exit_at_once, code)) for number, code in codes.items()}
    gc.disable()  # until all is imported: see `run_configuration`
    try:
        return _run_verb(given)
    finally:
        gc.enable()
        for number, handler in before.items():  # if the process ends, one more signal does not change its status
            signal.signal(number, signal.SIG_IGN if arguments is None else handler)


def _open_what_is_closed() -> None:
    """Without standard input, output or error, the next files that are opened would get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


def _exit_at_once(code: int, _number: int, _frame: FrameType | None) -> None:
    os._exit(code)


def _run_verb(arguments: list[str]) -> int:
    # A process that only imports this module does without the verbs and click.
    from click.exceptions import Abort, ClickException, Exit  # noqa: PLC0415

    from ingestd.cli.app import ingestd  # noqa: PLC0415

    try:
        # As click's own `main` does it, but without its answers to Ctrl-C and to a reader that went away.
        with ingestd.make_context("ingestd", arguments) as context:
            ingestd.invoke(context)
        code = 0
    except Exit as ending:
        code = ending.exit_code
    except ClickException as misuse:
        misuse.show()
        code = misuse.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Abort as unanswered:  # click's, at a prompt: for Ctrl-C, and for an input that ends
        code = INTERRUPTED if isinstance(unanswered.__context__, KeyboardInterrupt) else _report(_NO_ANSWER, sys.stderr)
    except (IngestdError, OSError, ExceptionGroup) as error:
        # A daemon ends, whether anybody reads why or not; a person may scroll through what came before.
        code = _report(error, unhindered(sys.stderr) if arguments[:1] == ["run"] else sys.stderr)
    return _written(code)


def _written(code: int) -> int:
    """`code`, once all that was printed is written: at the interpreter's own end nobody could say what went wrong."""
    if sys.stdout is None:  # there is none: the process was started with it closed
        return code
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _reader_gone()
    except OSError as error:
        _drop_output()
        print(f"ingestd: standard output: {error}", file=sys.stderr)
        return code or FAILED
    return code


def _report(error: Exception, errors: TextIO) -> int:
    causes = list(_causes(error))
    if any(isinstance(cause, BrokenPipeError) for cause in causes):
        return _reader_gone()
    unexpected = [cause for cause in causes if not isinstance(cause, (IngestdError, OSError))]
    if unexpected:
        raise error
    for cause in causes:
        for line in _said(cause).splitlines():
            print(f"ingestd: {line}", file=errors)
    return MISUSED if any(isinstance(cause, ConfigurationError) for cause in causes) else FAILED


def _said(cause: Exception) -> str:
    """What went wrong; of the system's errors the file comes first, as in every message, and not their number."""
    if isinstance(cause, OSError) and cause.filename is not None and cause.strerror:
        return f"{cause.filename}: {cause.strerror}"
    return str(cause) or type(cause).__name__


def _causes(error: Exception) -> Iterator[Exception]:
    """The errors that a group of tasks ended with, each once."""
    if isinstance(error, ExceptionGroup):
        for part in error.exceptions:
            yield from _causes(part)
    else:
        yield error


def _reader_gone() -> int:
    """Whoever read our output has enough (`| head`): no fault of ours, and nothing more can be written."""
    _drop_output()
    return 0


def _drop_output() -> None:
    """What is still to be written to standard output goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
