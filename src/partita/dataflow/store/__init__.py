"""Results on disk, from run to run."""

from partita.dataflow.store.folder import Found, NotKept, Put, Store

__all__ = ["Found", "NotKept", "Put", "Store"]
