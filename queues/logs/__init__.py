"""Logs: destinations that remember. Records have an index and stay, whoever has read them.

    batches, codecs     what is appended, stored and sent as one: the framing of records, and their compression
    log                 one log: what comes in, on its way to the disk
    outlets             who reads: groups and single readers
    reading, runs       records as messages; batches cut as they lie
    warmth              what is in the page cache, and what is read ahead
    places              earliest, latest, next, an index, a time
    table               all logs of a broker: retention, and what can be asked
    ports               what they need of disks, and of those who keep groups
    codes               result codes, and their words in ERRORs
    claims              portions of a queue that can be read again until they are acknowledged
    stages              what many writers have put aside, published once

Pure: files, threads and clocks are in `store/bigarray`, `store/journal` and above.
Source: seed 001 (Luxun), DESIGN section 8.
"""
