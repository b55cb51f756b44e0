"""Embeddings -> loss: a bank of past targets, constraints on which entries may be neighbors, and the losses."""
