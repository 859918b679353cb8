"""Trajectories of every method, recorded, and compared with those of later versions."""
