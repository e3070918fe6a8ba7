"""CRC-32C (Castagnoli), by the extension module of the package crc32c, in hardware where there is some."""

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
        """The extension without the package around it, or None where there is none to be found.

        The package asks `importlib.metadata` for its own version when it is imported: 20 ms of CPU for each process.
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
