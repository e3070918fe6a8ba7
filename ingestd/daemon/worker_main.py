"""A worker process's first lines: import what a worker needs, quickly, and run it.

A worker starts with every restart and every `--once`, so its start is kept short: no garbage collection while modules
are made, which live as long as the process.
"""

import gc
import sys

if __name__ == "__main__":
    gc.disable()
    from ingestd.daemon.worker import main

    gc.freeze()
    gc.enable()
    main(*map(int, sys.argv[1:]))
