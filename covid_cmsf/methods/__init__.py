"""Room 5: embeddings -> loss. A bank of past targets, constraints on who may be a neighbor, and the losses."""
