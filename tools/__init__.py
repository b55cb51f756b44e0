"""Development tools, run from a checkout."""
