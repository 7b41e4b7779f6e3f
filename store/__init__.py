"""The store: what outlives the process, and the memory of what does not fit into memory.

Import from the modules. The package itself imports nothing, and no module but `leveldb` and `repair` needs the LevelDB
binding: `directory` loads both when a database is opened.
"""
