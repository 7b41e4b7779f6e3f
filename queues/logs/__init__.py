"""Logs: destinations that remember. Records have an index and stay, whoever has read them.

    batches     what is appended, stored and sent as one: the framing of records
    codecs      compression of batches

Pure: files, threads and clocks are in `store/bigarray` and above.
Source: seed 001 (Luxun), DESIGN section 8.
"""
