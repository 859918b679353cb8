"""What holds for every test: one thread, a fixed seed."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # the tests run side by side; results must not depend on the machine
settings.register_profile("deva", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("deva")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
