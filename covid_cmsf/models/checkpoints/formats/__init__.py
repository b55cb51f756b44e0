"""The key layouts of checkpoint files: one module per project."""
