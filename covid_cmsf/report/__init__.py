"""Room 9: runs -> something to look at."""
