"""The command: `PYTHONPATH=tests python -m trajectories record FILE`."""

import sys

from trajectories.record import main

if __name__ == "__main__":
    sys.exit(main())
