"""The numbers that the paper prints, by the id of the experiment."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

_HYPER: Final = ("lr", "decay", "batch", "β₁", "β₂", "β₃", "ε", "refresh", "Nesterov")
PRINTED: Final = MappingProxyType[str, Any](
    {
        "fig-nanogpt": {"fewer tokens than Muon to its final loss": {"soap": 0.043, "deva": 0.066}},
        "table-nanogpt": {
            "loss": {"muon": 3.305, "soap": 3.304, "deva": 3.271},
            "ms / 1k tokens": {"muon": 10.72, "soap": 15.79, "deva": 16.49},
        },
        "table-lr": {
            "lr": (1e-4, 5e-4, 1e-3, 5e-3, 1e-2),
            "muon": (3.2819, 3.2804, 3.3038, 3.3803, 3.4015),
            "soap": (3.3686, 3.2769, 3.2808, 3.3313, 3.4422),
            "deva": (3.3450, 3.2729, 3.2709, 3.3382, 3.4174),
        },
        "table-beta3": {
            "beta3": (0.8, 0.9, 0.95, 0.975, 0.9875),
            "loss": (3.2719, 3.2687, 3.2743, 3.2749, 3.2723),
        },
        "table-variants": {
            "with sign": 3.271,
            "without sign": 3.269,
            "factored with sign": 3.309,
            "instantaneous with sign": 3.270,
        },
        "table-hyper": {
            "NanoGPT": {
                "": _HYPER,
                "Adam": (1e-3, 0.1, 49_152, 0.9, 0.99, None, 1e-8, None, False),
                "Lion": (1e-3, 0.1, 49_152, 0.95, 0.95, None, 1e-8, None, True),
                "Muon": (1e-3, 0.1, 49_152, 0.95, 0.95, 0.95, 1e-8, None, False),
                "SOAP": (1e-3, 0.1, 49_152, 0.95, 0.95, 0.95, 1e-8, 10, False),
                "AdaMuon": (1e-3, 0.1, 49_152, 0.95, 0.95, None, 1e-8, None, False),
                "DeVA-S∞": (1e-3, 0.1, 49_152, 0.95, 0.95, 0.95, 1e-8, 10, False),
            },
            "ViT-L/16": {
                "": _HYPER,
                "Adam": (1e-3, 0.1, 512, 0.9, 0.999, None, 1e-8, None, False),
                "Muon": (1e-3, 0.1, 512, 0.95, 0.95, None, 1e-8, None, True),
                "SOAP": (1e-3, 0.1, 512, 0.95, 0.95, 0.95, 1e-8, 10, False),
                "AdaMuon": (1e-3, 0.1, 512, 0.95, 0.95, None, 1e-8, None, False),
                "DeVA-S∞": (1e-3, 0.1, 512, 0.95, 0.95, 0.95, 1e-8, 10, True),
            },
            "ResNet-20": {
                "": _HYPER,
                "Adam": (0.05, 0.1, 128, 0.9, 0.999, None, 1e-8, None, False),
                "Signum": (0.05, 0.1, 128, 0.9, 0.999, None, 1e-8, None, False),
                "DeVA-ℓ∞": (0.05, 0.1, 128, 0.9, 0.999, None, 1e-8, None, False),
                "Muon": (1e-3, 0.1, 128, 0.95, 0.95, None, 1e-8, None, False),
                "SOAP": (1e-3, 0.1, 128, 0.95, 0.95, 0.95, 1e-8, 5, False),
                "AdaMuon": (1e-3, 0.1, 128, 0.95, 0.95, None, 1e-8, None, False),
                "DeVA-S∞": (1e-3, 0.1, 128, 0.95, 0.95, 0.95, 1e-8, 5, False),
            },
        },
        "table-methods": {
            "Adam": ("I", True),
            "Shampoo": ("I", False),
            "SOAP": ("Q_L, Q_R", True),
            "SPlus": ("Q_L, Q_R", False),
            "DeVA-S∞": ("Q_L, Q_R", True),
        },
        "fig-cifar": {
            "best rate": {"vector": 0.005, "matrix": 0.01},
            "range": (0.005, 0.01),
            "order": {"vector": "DeVA-ℓ∞ first", "matrix": "SOAP first"},
        },
        "fig-vit": {"order": "DeVA-S∞ first"},
        "table-snr": {
            "tokens": (5e6, 10e6, 50e6, 100e6, 500e6),
            "block.0.mlp.c_proj": (1973.9, 1634.4, 1534.6, 1635.8, 1652.0),
            "block.0.attn.c_proj": (969.5, 910.7, 753.4, 847.5, 854.8),
            "block.11.mlp.c_proj": (499.1, 2367.3, 1651.1, 1673.4, 1747.4),
            "block.11.attn.c_proj": (373.4, 1210.6, 781.2, 817.7, 894.7),
        },
    }
)
