"""The page to explore an index: static files that open from disk, or a server for localhost."""
