from __future__ import annotations
from typing import Any
Ranks = Any
class Sharing:
    def __init__(self, ranks, wire_dtype): pass
    def __bool__(self): return False
    def __contains__(self, p): return False
    def add(self, params): pass
    def blocks(self, g, f): return {}
    def spread_state(self, g, s): return {}
    def take_(self, g, s): pass
