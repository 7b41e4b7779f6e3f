"""Tests of the public face: configuration, command line, logs, layout."""
