"""Data folders that earlier versions have written."""
