"""What the demonstration (`examples.demo`) is made of.

server    the broker as a process of its own
clients   stomp.py connections with names, and a raw socket that can stop reading
flow_map  asks the broker who waits for whom, while the show goes on
account   messages owed, delivered, given up; the checks that make the verdict
acts      the six acts
screen    what every screen can do; plain lines for files and CI
live      the animated one, on a terminal
"""
