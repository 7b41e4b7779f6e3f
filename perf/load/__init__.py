"""The load generator: worker processes, their orders, and the code that starts and watches them."""
