"""CRC-32C (Castagnoli), by the extension module of the package crc32c, in hardware if the machine has it."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

__all__ = ["crc32c"]

if TYPE_CHECKING:
    from crc32c import crc32c
else:

    def _extension():
        """The extension module without its package; None if it is not found.

        When the package is imported, it asks `importlib.metadata` for its own version: 20 ms of CPU in each process.
        """
        package = PathFinder.find_spec("crc32c")
        if package is None or "crc32c" in sys.modules:
            return None
        spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if spec is None or spec.loader is None:
            return None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    crc32c = getattr(_extension(), "crc32c", None)
    if crc32c is None:
        from crc32c import crc32c
