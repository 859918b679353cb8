"""The models that the laboratory trains."""
