"""Weights in and out: files of several origins -> an encoder, and back. `load.py` is the way in."""
