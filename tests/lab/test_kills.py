"""`kill -9` at random moments: nothing that was finished is lost, and every end is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="commands are forked")
def test_a_hundred_kills_of_train_and_compare_change_nothing() -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("killing.py"), "--kills", "100"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("100 kills")
