"""Classifiers trained on labeled clips: fine-tuning, training from scratch, linear probe with augmentation."""
