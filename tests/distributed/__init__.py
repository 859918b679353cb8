"""Tests of several ranks: `deva_optim.distributed`."""
