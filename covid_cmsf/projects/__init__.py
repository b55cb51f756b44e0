"""Projects: from a folder of videos to encoders, an index and a page with one command, `covid-cmsf learn`."""
