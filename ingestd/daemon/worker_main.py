"""The first lines of a worker that is spawned: import what a worker needs, quickly, and run it.

Who waits for it waits for a worker that died, so its start is kept short: no garbage collection while modules are
made, which live as long as the process.
"""

import gc
import sys

if __name__ == "__main__":
    gc.disable()
    from ingestd.daemon.worker import main

    gc.freeze()
    gc.enable()
    main(*map(int, sys.argv[1:]))
