"""Tests of the step and its parts: `deva_optim.core`."""
