"""Who may connect, and what each may do: the guard of the broker.

    config       the objects of [security]
    patterns     which destinations a pattern covers, exactly
    permissions  entries compiled to decisions
    secrets      passcodes and their hashes
    attempts     failed logins are slowed
    rates        limits per second for users and listeners
    rules        a configuration that was looked through: what is in force, or will be
    gate         all of it together: what the broker asks
    admission    logins as tasks, requests and what they need (requests), reloads with connections there

Nothing is imported here, so that the configuration may import `config` alone.
"""
