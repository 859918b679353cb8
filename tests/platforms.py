"""What tests ask of the system that they run on."""

import os

import pytest

POSIX = os.name == "posix"
needs_posix = pytest.mark.skipif(
    not POSIX, reason="needs POSIX: signals to other processes, SIGKILL, ps"
)
