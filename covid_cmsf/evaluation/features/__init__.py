"""Checkpoint and clips -> features file."""
