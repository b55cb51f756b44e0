"""Search over videos: features -> index -> neighbors, duplicates, clusters. None of it needs labels."""
