"""The laboratory: compares optimizers on real training, measures them, and draws reports."""
