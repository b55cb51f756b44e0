"""The list of packages, with the folder configs/ as `covid_cmsf.configs`; everything else is in setup.cfg."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["covid_cmsf*", "preprocess*"]), "covid_cmsf.configs"])
