"""Read and write encoder weights in several checkpoint formats. The entry point is `load.py`."""
