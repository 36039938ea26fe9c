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
        help="the mean of one gradient of every worker",
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
        help="the mean of the next s gradients, whoever sends them",
        preset="SoftSyncStrategy",
    ),
    Entry(
        "bounded_staleness",
        "tfdist.synchronization:BoundedStaleness",
        "synchronization",
        paper="Ho et al. 2013",
        help="each gradient; nobody is far ahead of the slowest",
        preset="BoundedStalenessStrategy",
    ),
    Entry(
        "async",
        "tfdist.synchronization:Async",
        "synchronization",
        paper="Dean et al. 2012",
        help="each gradient when it arrives; nobody waits",
        preset="AsyncStrategy",
    ),
    Entry(
        "inverse_staleness",
        "tfdist.correction:InverseStaleness",
        "correction",
        paper="Zhang et al. 2016",
        help="a gradient counts less the later it is",
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
        help="a gradient counts less the more its parameters moved",
    ),
    Entry(
        "fasgd",
        "tfdist.correction:FASGD",
        "correction",
        paper="Odena 2016",
        help="a rate for each element, by deviation and staleness",
    ),
    Entry(
        "dana",
        "tfdist.correction:DANA",
        "correction",
        paper="Hakimi et al. 2019",
        help="each gradient, with momentum that looks ahead; for SGD",
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
        help="the same, with momentum between blocks of steps",
        preset="BMUFStrategy",
    ),
    Entry(
        "diloco",
        "tfdist.averaging.named:diloco",
        "local_steps",
        {"synchronization": "sync"},
        paper="Douillard et al. 2023",
        help="the same, through an outer Nesterov's momentum",
        preset="DiLoCoStrategy",
    ),
    Entry(
        "async_local_sgd",
        "tfdist.averaging.named:async_local_sgd",
        "local_steps",
        {"synchronization": "async"},
        paper="Liu et al. 2024",
        help="each worker's change, with delayed Nesterov's momentum",
        preset="AsyncLocalSGDStrategy",
    ),
    Entry(
        "easgd",
        "tfdist.averaging:ElasticAveraging",
        "local_steps",
        {"synchronization": "async"},
        paper="Zhang et al. 2015",
        help="a worker and the centre, drawn towards each other",
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
