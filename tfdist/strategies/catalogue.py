"""The methods that come with tfdist: one entry each, and no other list.

A new method is a file of its own and an entry here.
"""

from tfdist.strategies.entry import Entry


def _backup_workers(num_workers):
    """One backup worker, two, ... up to a quarter of the workers."""
    return [{"backup_workers": b} for b in range(1, num_workers // 4 + 1)]


ENTRIES = (
    Entry(
        "sync",
        "tfdist.synchronization:Sync",
        "synchronization",
        help="the mean of one gradient from every worker",
    ),
    Entry(
        "backup_workers",
        "tfdist.synchronization:Sync",
        "synchronization",
        {"backup_workers": 1},
        paper="Chen et al. 2016",
        help="the mean of the first N gradients of N + b workers",
        preset="BackupWorkersStrategy",
        variants=_backup_workers,
    ),
    Entry(
        "softsync",
        "tfdist.synchronization:SoftSync",
        "synchronization",
        paper="Zhang et al. 2016",
        help="the mean of the next s gradients from any worker",
        preset="SoftSyncStrategy",
    ),
    Entry(
        "bounded_staleness",
        "tfdist.synchronization:BoundedStaleness",
        "synchronization",
        paper="Ho et al. 2013",
        help="each gradient; no worker runs far ahead of the slowest",
        preset="BoundedStalenessStrategy",
    ),
    Entry(
        "async",
        "tfdist.synchronization:Async",
        "synchronization",
        paper="Dean et al. 2012",
        help="each gradient on arrival; no worker waits",
        preset="AsyncStrategy",
    ),
    Entry(
        "peer_to_peer",
        "tfdist.synchronization:Async",
        "synchronization",
        paper="Strom 2015",
        help="each worker's updates, sent to all others; no servers",
        communication="peers",
    ),
    Entry(
        "gossip",
        "tfdist.synchronization:Async",
        "synchronization",
        paper="Lian et al. 2018",
        help="averages weights with one random other worker; no servers",
        communication="gossip",
    ),
    Entry(
        "inverse_staleness",
        "tfdist.correction:InverseStaleness",
        "correction",
        paper="Zhang et al. 2016",
        help="each gradient, divided by its staleness",
    ),
    Entry(
        "dc_asgd",
        "tfdist.correction:DelayCompensation",
        "correction",
        paper="Zheng et al. 2017",
        help="each gradient, compensated for its delay",
        preset="DCASGDStrategy",
    ),
    Entry(
        "gap_aware",
        "tfdist.correction:GapAware",
        "correction",
        paper="Barkai et al. 2020",
        help="each gradient, smaller where parameters have moved since",
    ),
    Entry(
        "fasgd",
        "tfdist.correction:FASGD",
        "correction",
        paper="Odena 2016",
        help="each gradient, divided by its deviation and staleness",
    ),
    Entry(
        "dana",
        "tfdist.correction:DANA",
        "correction",
        paper="Hakimi et al. 2019",
        help="each gradient, with look-ahead momentum; SGD only",
        preset="DANAStrategy",
    ),
    Entry(
        "parameter_averaging",
        "tfdist.averaging:ParameterAveraging",
        "local_steps",
        {"synchronization": "sync"},
        paper="Su and Chen 2015, Stich 2019",
        help="the mean of all workers' weights after K local steps",
        preset="ParameterAveragingStrategy",
    ),
    Entry(
        "bmuf",
        "tfdist.averaging.named:bmuf",
        "local_steps",
        {"synchronization": "sync"},
        paper="Chen and Huo 2016",
        help="parameter averaging with momentum between averages",
        preset="BMUFStrategy",
    ),
    Entry(
        "diloco",
        "tfdist.averaging.named:diloco",
        "local_steps",
        {"synchronization": "sync"},
        paper="Douillard et al. 2023",
        help="parameter averaging through outer Nesterov momentum",
        preset="DiLoCoStrategy",
    ),
    Entry(
        "async_local_sgd",
        "tfdist.averaging.named:async_local_sgd",
        "local_steps",
        {"synchronization": "async"},
        paper="Liu et al. 2024",
        help="one worker's weight change, with delayed Nesterov momentum",
        preset="AsyncLocalSGDStrategy",
    ),
    Entry(
        "easgd",
        "tfdist.averaging:ElasticAveraging",
        "local_steps",
        {"synchronization": "async"},
        paper="Zhang et al. 2015",
        help="each worker and a central copy pull each other closer",
        preset="ElasticAveragingStrategy",
    ),
    Entry(
        "downpour",
        "tfdist.averaging.named:downpour",
        "local_steps",
        {"synchronization": "async"},
        paper="Dean et al. 2012",
        help="the summed gradients of n_push steps, through Adagrad",
        preset="DownpourStrategy",
    ),
)
