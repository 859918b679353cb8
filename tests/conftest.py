"""What holds for every test: one thread unless told otherwise, a fixed seed."""

import os

import pytest
import torch
from hypothesis import settings

# The tests run side by side; results must not depend on the machine. `make portability` has more.
torch.set_num_threads(int(os.environ.get("DEVA_TEST_THREADS", "1")))
settings.register_profile("deva", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("deva")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
