"""The store: what outlives the process, and the memory of what does not fit into memory.

The ground of it, which all blocks:

    engine      the port: an ordered key-value store, atomic batches, what is durable when
    leveldb     the adapter for LevelDB
    memory      one without a disk
    faulty      one for tests that fails, forgets and is slow on demand
    directory   the data folder: lock, format, layout
    repair      opening a database that is damaged
    attic       damaged things moved aside
"""

from .directory import (
    Directory,
    DirectoryError,
    FormatError,
    LockedError,
    MissingError,
    NoSpaceError,
    NotAFolderError,
    NotWritableError,
    open_directory,
)
from .engine import (
    Change,
    CorruptionError,
    DiskFullError,
    Engine,
    EngineClosedError,
    EngineError,
    EngineFailedError,
    delete,
    delete_range,
    put,
)
from .leveldb import LevelDbEngine, LevelDbOptions
from .memory import MemoryEngine
from .quarantine import Quarantine
from .repair import RepairReport

__all__ = [
    "Change",
    "CorruptionError",
    "Directory",
    "DirectoryError",
    "DiskFullError",
    "Engine",
    "EngineClosedError",
    "EngineError",
    "EngineFailedError",
    "FormatError",
    "LevelDbEngine",
    "LevelDbOptions",
    "LockedError",
    "MemoryEngine",
    "MissingError",
    "NoSpaceError",
    "NotAFolderError",
    "NotWritableError",
    "Quarantine",
    "RepairReport",
    "delete",
    "delete_range",
    "open_directory",
    "put",
]
