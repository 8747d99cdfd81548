"""Results on disk, from run to run."""

from partita.dataflow.store.folder import Absent, Found, NotKept, Put, Store

__all__ = ["Absent", "Found", "NotKept", "Put", "Store"]
