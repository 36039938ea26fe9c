"""The account that a worker keeps of the messages of each other worker."""

from typing import NamedTuple

import tensorflow as tf

from tfdist.peers import messages

# Columns: the number of the last update that was applied, and the sender's
# checksum of all until then; updates applied, and missed where this worker had
# been given up; the sum of the staleness of messages; the bits of the sender's
# learning rate; the call of `fit` that the sender has said is to stop;
# messages, those that came twice, those of a process that has been replaced;
# bytes; and messages without an update.
COLUMNS = 12
(
    SEEN,
    SUM,
    APPLIED,
    MISSED,
    STALE,
    RATE,
    TOLD,
    MESSAGES,
    DUPLICATES,
    FOREIGN,
    BYTES,
    EMPTY,
) = range(COLUMNS)
_REPORTED = {
    "applied": APPLIED,
    "missed": MISSED,
    "duplicates": DUPLICATES,
    "foreign": FOREIGN,
}
_OF_SENDERS = ("delivered", "lost", "repeated")
_KEPT = ("before", "fetched", "earlier")


class Account(NamedTuple):
    """Counts of a channel, which are kept when the channel is freed.

    Attributes:
      own: int64 variable `(2,)`: number of this worker's last update, and the
        checksum of all.
      counts: int64 variable `(num_workers, COLUMNS)`.
      fetched: By worker, a list: updates that this worker began with, or took
        over from another worker.
      before: By joiner, a dict: this worker's updates before it came.
      earlier: By worker, a list: updates of its earlier processes that are
        here.
    """

    own: tf.Variable
    counts: tf.Variable
    fetched: list
    before: dict
    earlier: list


def is_fresh(counts, header, known):
    """Builds whether a message has an update that is not here yet.

    Args:
      counts: The account, int64 `(num_workers, COLUMNS)`.
      header: Of the message, a list of scalars int64; see `messages`.
      known: The workers' processes, int64 `(num_workers,)`.

    Returns:
      A scalar bool, and whether the message is of the sender's own process of
      now, the same.
    """
    sender = header[messages.SENDER]
    is_known = tf.equal(tf.gather(known, sender), header[messages.INCARNATION])
    seen = tf.gather(counts, sender)[SEEN]
    return is_known & (header[messages.LAST] > seen), is_known


def add(counts, header, fresh, is_known, sent, me, size):
    """Builds the account with one more message.

    Args:
      counts: The account before.
      header: As for `is_fresh`.
      fresh: As `is_fresh` returns.
      is_known: The same.
      sent: Number of this worker's last update, scalar int64.
      me: Number of this worker, int.
      size: Bytes of the message, scalar int64.

    Returns:
      An int64 tensor, the account.
    """
    sender = header[messages.SENDER]
    first, last = header[messages.FIRST], header[messages.LAST]
    row = tf.unstack(tf.gather(counts, sender))
    new, known, numbered = tf.unstack(
        tf.cast(tf.stack([fresh, is_known, is_known & (last > 0)]), tf.int64)
    )
    row[APPLIED] += new * (last - first + 1)
    row[MISSED] += new * (first - row[SEEN] - 1)
    # So many updates of this worker's the sender had not applied.
    row[STALE] += new * (sent - header[messages.SEEN + me])
    for column, place in (
        (SEEN, messages.LAST),
        (SUM, messages.SUM),
        (RATE, messages.RATE),
    ):
        row[column] = tf.where(fresh, header[place], row[column])
    row[TOLD] = tf.maximum(row[TOLD], known * header[messages.STOP])
    row[MESSAGES] += 1
    row[DUPLICATES] += numbered - new
    row[FOREIGN] += 1 - known
    row[BYTES] += size
    row[EMPTY] += known - numbered
    return tf.tensor_scatter_nd_update(
        counts, sender[None, None], tf.stack(row)[None]
    )


def totals(counted, names, me):
    """Sums up the accounts of all channels.

    Args:
      counted: Pairs of an `Account` and the list of `PeerSender`s of a channel.
      names: Names of all workers.
      me: Number of this worker.

    Returns:
      A dict: see `PeerToPeerStrategy.update_counts`.
    """
    result = {"sent": 0}
    for key in (*_OF_SENDERS, *_REPORTED, *_KEPT):
        result[key] = dict.fromkeys(names, 0)
    for account, senders in counted:
        result["sent"] += int(account.own.numpy()[0])
        counts = account.counts.numpy()
        for worker, name in enumerate(names):
            for key, column in _REPORTED.items():
                result[key][name] += int(counts[worker, column])
            result["before"][name] += account.before.get(worker, 0)
            result["fetched"][name] += account.fetched[worker]
            result["earlier"][name] += account.earlier[worker]
        for sender in senders:
            for key in _OF_SENDERS:
                result[key][names[sender.worker]] += getattr(sender, key)
    for key in set(result) - {"sent"}:
        del result[key][names[me]]
    return result
