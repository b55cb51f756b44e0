"""Parts of `tools/chaos.py`: commands, their processes, disturbances, and the comparison of results."""
