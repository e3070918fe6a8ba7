"""The first lines of a worker that is spawned: import what a worker needs, quickly, and run it.

A spawned worker replaces one that died, so its start must be short. There is no garbage collection while modules are
imported: they live as long as the process.
"""

import gc
import sys

if __name__ == "__main__":
    gc.disable()
    from ingestd.daemon.worker import main

    gc.freeze()
    gc.enable()
    main(*map(int, sys.argv[1:]))
