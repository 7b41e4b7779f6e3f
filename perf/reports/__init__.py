"""Results, the figures in them, and the tables, charts and pages that are made of them."""
