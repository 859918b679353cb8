"""Tests of the way from a model to parameter groups: `deva_optim.routing`."""
