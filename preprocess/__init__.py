"""Preprocessing: video files -> clip store, with optical flow; and synthetic demo videos.

Imports from `covid_cmsf` the store's file format and decoders (`clips`) and the base modules (`config`, `files`,
`logs`, `exit_codes`), nothing else.
"""
