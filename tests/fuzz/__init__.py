"""A fuzzer for the optimizers: cases from seeds, invariants after every step, shrunk faults.

    PYTHONPATH=tests python -m fuzz --cases 10000 --jobs 2

A fault is printed with its seed and with a smaller case that still has it, as Python:

    from fuzz import *
    run(Case(…))
"""

import torch

from fuzz.case import Case, Event, Grad, Group, Param, Step
from fuzz.draw import case_of
from fuzz.invariants import Fault
from fuzz.run import fault_of, run
from fuzz.shrink import shrunk

__all__ = [
    "Case",
    "Event",
    "Fault",
    "Grad",
    "Group",
    "Param",
    "Step",
    "case_of",
    "fault_of",
    "run",
    "shrunk",
    "torch",
]
