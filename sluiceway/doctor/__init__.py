"""`sluiceway doctor`: checks of machine, configuration and running broker, before or while a broker runs.

    findings   results with verdict and remedy, and their display (also of `sluiceway spark doctor`)
    facts      known data about machine, configuration, folder, ports and the running broker
    probes     collection of these facts: files, sockets, limits, clocks; with `ports`, `asking` and `software`
    checks     facts to findings: one function per subject, all of them in `CHECKS`

Checks are pure, so each has a test for good and for bad without a machine in that state. A new check is a function in
`checks` and an entry in its list. Unknown facts are None and give no finding.

Nothing is changed: no folder is made, and a port is bound only for the moment of the test. (An unnamed file is written
to the data folder, to measure a sync.)
"""
