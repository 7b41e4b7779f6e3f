"""`sluiceway top`: what is shown, without a terminal where possible."""
