"""Clip -> augmented views. Parameters are drawn once per clip; the operations run on whole clips, on CPU or GPU."""
