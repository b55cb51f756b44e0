"""CoViD-CMSF: teach video encoders without labels by constrained mean shift."""

__version__ = "0.1.0"
