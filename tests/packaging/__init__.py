"""Sluiceway as it is built and installed, in a project with packages of its own."""
