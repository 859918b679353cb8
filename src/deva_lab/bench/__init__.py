"""What a step costs: time, memory and FLOPs of every method and its peers, on real shapes.

`deva bench` runs it; `deva_lab.bench.step.run` is the same for a program.
"""

import os

# Before torch is imported: its profiler would say on stderr when it starts and stops, and which
# memory it had not seen being allocated.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
