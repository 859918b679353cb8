"""Tests of `deva_optim.integrations`, each against the package that it is for."""
