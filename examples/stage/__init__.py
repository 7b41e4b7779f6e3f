"""Parts of the demonstration (`examples.demo`).

server        a broker as a process of its own
clients       stomp.py connections with names; raw sockets that can stop reading, or carry heavy loads
flow_map      asks the broker who waits for whom, while the show goes on
account       messages owed, delivered, given up; the checks that make the verdict
play          what an act is, and the stage that it gets
acts          the first acts: speed, slowness, refusals, priority
lasting_acts  the others: what the store is for
screen        what every screen can do; plain lines for files and CI
live          the animated one, on a terminal
"""
