"""Text and images: by name, by path, or out of what every Python has."""
