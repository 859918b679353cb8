"""Helpers for the training loops of other libraries, a module for each, which imports that library.

The rest of `deva_optim`, which needs torch alone, imports nothing from here.
"""
