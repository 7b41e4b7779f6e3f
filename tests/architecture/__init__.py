"""Rules of the house: layers, style, packaging, scripts."""
