"""A line for each training loop of others; a module here needs the framework that it is named for.

Nothing is imported from here by the library itself, which needs torch alone.
"""
