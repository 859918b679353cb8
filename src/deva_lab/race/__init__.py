"""The race: the fewest tokens to the loss of a tuned Muon, by rules that are fixed beforehand."""
