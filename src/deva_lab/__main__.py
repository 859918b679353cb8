"""`python -m deva_lab`, which is the command `deva`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
