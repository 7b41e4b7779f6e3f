"""Several hubs: what they agree on, and who owns what."""
