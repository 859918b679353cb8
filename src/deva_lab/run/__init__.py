"""Runs: what they are, how they are planned, trained, kept and carried out."""
