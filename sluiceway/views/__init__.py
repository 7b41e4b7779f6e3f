"""What the broker is doing, read in one place: `stat`, the HTTP API, the map and metrics render what is here.

    destinations   what a destination holds and counted, how old it is, who takes from it
    connections    what a connection brings, takes and waits for

A figure has one name and one definition. Those that lists are sorted by can be read alone, for a list may have a
hundred thousand rows of which fifty are shown. Nothing here is kept: what is read is as it is at that moment.
"""
