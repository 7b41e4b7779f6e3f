"""`sluiceway doctor`: what keeps a broker from running well on this machine, before it runs or while it does.

    findings   one thing that was looked at, with verdict and remedy; how they are shown (also `sluiceway spark doctor`)
    facts      what is known of machine, configuration, folder, ports and the running broker: plain data
    looking    finds these facts: files, sockets, limits, clocks; `ports`, `asking` and `software` beside it
    checks     facts to findings: one function for each subject, all of them in `CHECKS`

Checks are pure, so each has a test for good and for bad without a machine that is in that state. A new one is a
function in `checks` and an entry in its list. Facts that could not be found out are None, and no finding is made of
what nobody knows.

Nothing is changed: no folder is made, nothing is listened on for longer than it takes to see that it could be. (A file
without a name is written to the data folder, to see how long a sync takes.)
"""
