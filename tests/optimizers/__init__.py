"""Tests of every optimizer as a user has it: `deva_optim.optimizers`."""
