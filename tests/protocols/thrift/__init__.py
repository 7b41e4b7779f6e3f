"""Thrift: its wire form."""
