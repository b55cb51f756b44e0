"""Room 1: video files -> clip store. Shares with `covid_cmsf` only the on-disk contract in `covid_cmsf.clips`."""
