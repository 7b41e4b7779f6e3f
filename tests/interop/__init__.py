"""Real clients, and the wire habits of those that cannot be installed here, against a broker on the loop-back
interface.
"""
