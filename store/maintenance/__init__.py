"""What people do with a store while no broker runs: look whether it is whole, mend it, carry it elsewhere.

    opening     the folder and its database, for a tool
    records     all records of a block together, in the order of the table
    faults      what can be wrong, as data
    survey      goes through everything and finds what is wrong, and what would mend it
    check       the survey as a report
    mending     does what the survey says
    lines       the export format: one JSON object a line
    export      a store as lines
    targets     the queues that an import appends to
    importing   lines into a store
    compacting  gives back space

All of it blocks, none of it prints: `sluiceway store` (sluiceway/cli/store.py) is the face of it.
"""
