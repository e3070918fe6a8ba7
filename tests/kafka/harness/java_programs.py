"""Java programs of `tests/interop/java`, run from source with Apache Kafka's jars: asked line by line."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from harness.jars import kafka_jars
from harness.node import JAVA_FOR_TESTS, java
from harness.programs import program

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["JavaProgram", "java_program"]

SOURCES = Path(__file__).resolve().parents[2] / "interop" / "java"
END_SECONDS = 20
ANSWER_SECONDS = 100


class JavaProgram:
    """A running program that takes a line of JSON on its standard input, and says lines of JSON."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
            self._lines.put("")

    def tell(self, message: Any) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """The next line. Raises `RuntimeError` with what the program said when it has ended, or says nothing."""
        try:
            line = self._lines.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            line = ""
        if not line:
            self._errors.seek(0)
            ended = "has ended" if self._process.poll() is not None else f"said nothing for {ANSWER_SECONDS} s"
            raise RuntimeError(f"the Java program {ended}: {self._errors.read()}")
        return json.loads(line)

    def ask(self, message: Any) -> Any:
        """Send one line, and give the next that comes."""
        self.tell(message)
        return self.hear()


@contextmanager
def java_program(name: str, directory: Path) -> Iterator[JavaProgram]:
    """Run `tests/interop/java/NAME.java` until the block is left; it ends when its standard input does.

    Starting one takes about two seconds. `directory` gets what it says on standard error.
    """
    program("javac")  # `java` alone does not run sources
    options = ("-Dlog4j2.level=OFF", *JAVA_FOR_TESTS)
    with (directory / f"{name}.errors").open("w+") as errors:
        process = subprocess.Popen(
            java(kafka_jars(), options, str(SOURCES / f"{name}.java")),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8",
        )  # fmt: skip
        try:
            yield JavaProgram(process, errors)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_SECONDS)
