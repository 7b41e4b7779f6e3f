"""The examples run, and the documents tell the truth."""
