"""`python -m ingestd` is the `ingestd` command."""

import sys

from ingestd.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
