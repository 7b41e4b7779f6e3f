"""Offline tools for a store: check it, repair it, export and import it, while no broker runs.

    opening     the folder and its database, for a tool
    records     all records of a block together, in the order of the table
    bodies      large bodies, in files or in a database
    faults      kinds of damage, as data
    survey      reads everything, finds faults and their repairs
    check       the survey as a report
    mending     applies the repairs of the survey
    lines       the export format: one JSON object a line
    export      a store as lines
    targets     the queues that an import appends to
    importing   lines into a store
    compacting  reclaims space

All of it blocks, none of it prints: `sluiceway store` (sluiceway/cli/store.py) is the front end.
"""
