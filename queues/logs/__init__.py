"""Logs: destinations whose records have an index and stay after they were read.

    batches, codecs     the framing of records that are appended, stored and sent as one; compression
    log, offers         one log: appended records on their way to the disk; checks before
    answers             callbacks of one log, in order and in bounded steps
    log_readers, group  readers: groups and single consumers (line: their turns; epochs: seeks)
    redelivery, refused records that are handed out again; records that consumers refused
    reading, runs       records as messages; batches cut from the file
    page_cache          which records are in the page cache, and what is read ahead
    positions           earliest, latest, next, an index, a time
    table, removing     all logs of a broker: retention and requests; deleting files
    ports               what logs need of disks, and of the stores of group positions
    codes               result codes, and their words in ERROR frames
    claims              portions of a queue that can be read again until they are acknowledged
    staged_commits      records staged by many writers, published once

Pure: files, threads and clocks are in `store/bigarray`, `store/log_storage` and above.

Source: seed 001 (Luxun), DESIGN section 8.
"""
