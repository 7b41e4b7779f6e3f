"""Authentication and authorization: the guard of the broker.

    config       the objects of [security]
    patterns     which destinations a pattern covers, exactly
    permissions  entries compiled to decisions
    secrets      passcodes and their hashes
    checks       equal checks at the same time are one; what was right is kept
    users        all users, from the configuration, the users file and certificates
    outside      port to sources of other logins (outside_config: their settings)
    tokens       bearer tokens (JWT), with issuers: their keys
    directory    one LDAP directory; directories: all, in threads
    sources      the sources in force
    attempts     delays after failed logins
    rates        limits per second for users and listeners
    rules        a checked configuration, in force or to be
    gate         all parts together: the port of the broker
    admission    logins as tasks, permissions of requests (requests), reloads with open connections

This package imports nothing, so that the configuration may import `config` alone.
"""
