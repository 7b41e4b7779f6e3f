"""Programs to learn from: each runs as it stands, from the checkout, with `python -m examples.NAME`."""
