"""`python -m deva_lab.bench` is `deva bench`."""

import sys

from .cli import main

sys.exit(main(sys.argv[1:]))
