"""The port to coordination, and its adapters."""
