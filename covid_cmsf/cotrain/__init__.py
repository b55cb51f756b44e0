"""Co-training: a plan of training stages, run in dependency order. Stages communicate through files only."""
