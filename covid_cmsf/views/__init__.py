"""Clip -> augmented views. One draw a clip; tensor operations on whole clips, the same on CPU and GPU."""
