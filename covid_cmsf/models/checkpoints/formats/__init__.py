"""How each family of checkpoint files names its tensors: one module per family."""
