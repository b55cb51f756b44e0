"""Clips in formats of other projects: CoCLR's LMDB files and folders of JPEG frames (rawframes)."""
