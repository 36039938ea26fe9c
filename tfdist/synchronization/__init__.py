"""Methods of synchronization: when updates count, and who waits.

One file per method. A method is a set of pure TensorFlow functions over the
state of the cluster (`state.State`); it knows nothing of processes, devices
or Keras.
"""

from tfdist.synchronization.asynchronous import Async
from tfdist.synchronization.base import Synchronization
from tfdist.synchronization.bounded_staleness import BoundedStaleness
from tfdist.synchronization.softsync import SoftSync
from tfdist.synchronization.sync import Sync

__all__ = ["Async", "BoundedStaleness", "SoftSync", "Sync", "Synchronization"]
