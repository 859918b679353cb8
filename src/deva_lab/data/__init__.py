"""Text and images: by name, by path, or out of what every Python has."""

SHARD_TOKENS = 100_000_000  # in a shard, as modded-nanogpt cuts them
