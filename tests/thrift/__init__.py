"""Logs over Thrift."""
