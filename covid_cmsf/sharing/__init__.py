"""Sharing encoders: a folder of weights, metadata and a model card, and the Hugging Face Hub."""
