"""Self-tests of an installation: `covid-cmsf doctor --gpu`."""
