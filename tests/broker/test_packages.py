"""What is published: a source distribution to build and test from, and a wheel that needs nothing beside it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 600
MADE = (".git", ".venv*", "build", "results", "__pycache__", "*.so", "*.c", "*.egg-info", ".*_cache", ".hypothesis")


def build(kind: str, source: Path, into: Path) -> Path:
    """Build with what is installed here; nothing is downloaded."""
    program = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(into)!r}))"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=source, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return into / ran.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    directory = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, directory / "tree", symlinks=True, ignore=shutil.ignore_patterns(*MADE))
    with tarfile.open(build("sdist", directory / "tree", directory)) as archive:
        archive.extractall(directory, filter="data")
    (unpacked,) = directory.glob("ingestd-*/")
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built of it, unpacked."""
    directory = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(build("wheel", sdist, directory)) as archive:
        archive.extractall(directory / "unpacked")
    return directory / "unpacked"


def files(directory: Path) -> set[str]:
    return {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}


def test_the_source_distribution_has_what_is_in_the_repository(sdist: Path) -> None:
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    missing = {name for name in kept if name} - files(sdist)
    # `ingestd/config` is a link, and a directory here.
    assert missing <= {".dockerignore", ".gitignore", "ingestd/config"}
    assert not [name for name in files(sdist) if name.endswith((".so", ".c", ".pyc"))]


def test_the_wheel_has_the_compiled_loops_and_no_tests(wheel: Path) -> None:
    there = files(wheel)
    for module in ("_decode_compiled", "_encode_compiled", "_intake_compiled"):
        assert [name for name in there if name.startswith(f"ingestd/records/{module}.") and name.endswith(".so")]
    assert {name.partition("/")[0].partition("-")[0] for name in there} == {"ingestd"}
    assert "ingestd/py.typed" in there


def test_an_installed_wheel_writes_examples_that_are_good(wheel: Path, tmp_path: Path) -> None:
    # Found before what is installed here in place.
    environment = {**os.environ, "PYTHONPATH": str(wheel)}

    def ingestd(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "ingestd", *arguments]
        ran = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    listed = ingestd("example")
    reference = Path(listed.split()[-1])
    assert reference == wheel / "ingestd/config/REFERENCE.md"
    assert reference.read_text() == (ROOT / "config/REFERENCE.md").read_text()
    (tmp_path / "ingestd.toml").write_text(ingestd("example", "tails"))
    assert ingestd("check", "ingestd.toml").startswith("ingestd.toml: good")


def test_links_of_the_readme_lead_to_files_beside_it_wherever_the_source_lies(sdist: Path) -> None:
    """They named a host whose repository may not exist, or may be somebody else's."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (sdist / "README.md").read_text())
    assert links
    assert [link for link in links if not link.startswith("https://") and not (sdist / link).is_file()] == []
    assert "urls" not in tomllib.loads((sdist / "pyproject.toml").read_text())["project"]
