"""Hubs on several machines: real services, real processes."""
