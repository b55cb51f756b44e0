"""Labels that are wrong or missing on purpose: noise and fractions, drawn from a seed, kept in files."""
