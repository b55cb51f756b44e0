"""Fuzzing: every reader of files and requests that others made, on damaged and hostile ones."""
