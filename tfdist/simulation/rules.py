"""What is said of a decided case: rules, in words.

A rule is a function of a `verdict.Case` that returns a sentence or two, or None
where it has nothing to say. `RULES_OF_A_CLUSTER` hold where a method has been
recommended, `RULES_OF_ONE_MACHINE` where none is worth it.

What rules know of accuracy is not measured but read: an update of synchronous
methods is that of one machine with a larger batch (Chen et al. 2016), N
asynchronous workers make gradients N - 1 updates late (Zhang et al. 2016), and
very late gradients need a smaller learning rate or a correction.
"""

WORTH_BACKUPS = 1.1
"""How many times the rate of `Sync` backup workers have to give: they drop
data."""

HIGH_STALENESS = 4.0
"""Mean staleness from which a correction or a smaller rate is named. Nothing
here is measured: some models bear more, some less."""

MUCH_OVERHEAD = 0.1
"""Part of a step from which overhead is named."""


def recommendation(case):
    """Which method, with how many workers, and at what it gives up speed."""
    chosen, fastest = case.chosen, case.fastest
    text = (
        f"Use {chosen.method} with {_count(chosen.num_workers, 'worker')}: "
        f"{_rate(chosen)}, {chosen.speed_up:.1f} times one machine's "
        f"{case.measurement.examples_per_second:,.0f}."
    )
    if fastest is chosen:
        return text
    text += (
        f" The fastest is {fastest.method} with {fastest.num_workers}, "
        f"{fastest.speed_up:.1f} times"
    )
    if fastest.num_workers > chosen.num_workers:
        text += (
            f": {fastest.num_workers / chosen.num_workers:.1f} times the "
            f"workers for {fastest.speed_up / chosen.speed_up:.1f} times the "
            "rate"
        )
    if fastest.staleness_mean > chosen.staleness_mean + 0.5:
        text += (
            f"; its gradients are late by {fastest.staleness_mean:.1f} updates "
            f"on average, here by {chosen.staleness_mean:.1f}"
        )
    return f"{text}."


def staying(case):
    """That no method is worth it."""
    best = case.fastest
    return (
        f"Stay on one machine: it trains on "
        f"{case.measurement.examples_per_second:,.0f} examples/s. The most "
        f"that a method gives is {best.speed_up:.2f} times that "
        f"({best.method} with {_count(best.num_workers, 'worker')}), less "
        f"than {case.min_speed_up:g}."
    )


def reason(case):
    """What takes the time of one gradient, so what bounds the rate."""
    row = case.chosen or case.fastest
    push, pull = case.measurement.push_bytes, case.measurement.pull_bytes
    parts = {k: s for k, s in row.parts.items() if s > 1e-9}
    listed = ", ".join(
        f"{name} {_seconds(parts[name])}"
        for name in sorted(parts, key=parts.get, reverse=True)
    )
    return (
        f"It is bound by {row.bound}. For each gradient of a worker these are "
        f"busy: {listed}. A step sends {_bytes(push)} and gets {_bytes(pull)}."
    )


def changes(case):
    """What would change the verdict, or make the cluster faster."""
    if case.chosen is None and not case.remedies:
        return (
            "Neither a larger batch, a faster network, more servers nor more "
            f"workers alone would make it {case.min_speed_up:g} times."
        )
    if not case.remedies:
        return None
    words = {
        "batch_size": "a batch of {:,} on each worker (if computing takes as "
        "many times as long; accuracy may suffer)",
        "bandwidth_gbps": "links of {:g} Gbit/s",
        "num_servers": "{} servers",
        "num_workers": "{} workers",
    }
    listed = "; ".join(
        f"{words[r.change].format(r.value)}: {r.prediction.speed_up:.1f} times"
        for r in case.remedies
    )
    row = case.chosen or case.largest
    goal = "What would help" if case.chosen else "What would change that"
    return (
        f"{goal}, each by itself, with {row.method} and "
        f"{_count(row.num_workers, 'worker')}: {listed}."
    )


def batches(case):
    """Means of gradients are those of a larger batch."""
    chosen = case.chosen
    number = round(chosen.gradients_per_update)
    if number < 2:
        return None
    batch = case.measurement.batch_size
    larger = f"a batch of {number * batch} ({number} x {batch})"
    text = (
        "No gradient is late: an update is that of one machine with "
        f"{larger}, and so is the accuracy"
        if chosen.is_synchronous
        else f"An update is made of {larger}"
    )
    text += "; the learning rate is usually scaled up with it."
    if chosen.dropped > 0:
        text += (
            f" {chosen.dropped:.0%} of the gradients are dropped. Where it is "
            "always the same workers that come last, their data is not "
            "learned: on_drop=retry computes it again."
        )
    return text


def lateness(case):
    """Late gradients: how late, and from when on to do something about it."""
    chosen = case.chosen
    if chosen.is_synchronous:
        return None
    text = (
        f"A gradient is late by {chosen.staleness_mean:.1f} updates on average "
        f"(95 % by at most {chosen.staleness_p95:.0f})"
    )
    if chosen.staleness_mean < HIGH_STALENESS:
        return f"{text}: most models bear that, some with a smaller rate."
    return (
        f"{text}. That is much: try a smaller learning rate, or correct late "
        "gradients by delay compensation (dc_asgd), or with momentum by DANA "
        "(dana:variant=slim). Their exchanges take 1.2 to 1.5 times as long as "
        "those of async, which is not counted here."
    )


def backups(case):
    """Whether stragglers are why `Sync` is slow, and how many backups help."""
    row = case.chosen or case.fastest
    synchronous = [
        p
        for p in case.predictions
        if p.is_synchronous and p.num_workers == row.num_workers
    ]
    sync = [p for p in synchronous if _backup_workers(case, p) == 0]
    backed = [p for p in synchronous if _backup_workers(case, p) > 0]
    if not sync or not backed:
        return None
    sync, best = sync[0], max(backed, key=lambda p: p.speed_up)
    if best.speed_up < WORTH_BACKUPS * sync.speed_up:
        return None
    number = _backup_workers(case, best)
    return (
        f"Stragglers are why sync is slow: with {sync.num_workers} workers "
        f"these wait {sync.waiting:.0%} of the time, {sync.speed_up:.1f} times "
        f"one machine. {_count(number, 'backup worker')} of "
        f"{sync.num_workers} would make it {best.speed_up:.1f} times, for "
        f"{best.dropped:.0%} of the gradients."
    )


def uneven_servers(case):
    """One parameter too large to be shared out."""
    row = case.chosen or case.fastest
    servers = case.cluster.num_servers
    if servers == 1 or row.bound != "servers' links":
        return None
    _, pull = case.measurement.traffic(case.methods[row.method], servers)
    share = max(pull) / sum(pull)
    if share * servers < 1.5:
        return None
    return (
        f"One of {servers} servers holds {share:.0%} of the bytes: a large "
        "parameter is on one server unless variable_partitioner= splits it."
    )


def slow_workers(case):
    """Some are always slower, and `fit` gives all as much data."""
    row = case.chosen or case.fastest
    compute = case.cluster.compute_time(case.measurement)
    means = [compute.mean(worker) for worker in range(row.num_workers)]
    typical = sorted(means)[(len(means) - 1) // 2]
    slowest = max(range(len(means)), key=means.__getitem__)
    if row.is_synchronous or means[slowest] < 1.1 * typical:
        return None
    return (
        f"Worker {slowest} takes {means[slowest] / typical:.1f} times as long "
        "as others. The rates are those while all train; `fit` gives each an "
        "equal share of the data, so the others are done before it."
    )


def overhead(case):
    """Steps so short that what an exchange costs by itself weighs."""
    seconds = case.cluster.overhead_seconds
    step = case.measurement.step_seconds
    if seconds < MUCH_OVERHEAD * step:
        return None
    return (
        f"A step of one machine takes {_seconds(step)}. {_seconds(seconds)} "
        "more are assumed for what an exchange takes in TensorFlow itself; "
        "benchmarks/step_overhead.py in tfdist's repository measures it."
    )


def unknown(case):
    """What has not been looked at."""
    del case
    return (
        "Rates are predicted, accuracy is not: `tfdist simulate` and `tfdist "
        "compare` train with virtual workers."
    )


RULES_OF_A_CLUSTER = (
    recommendation,
    reason,
    batches,
    lateness,
    backups,
    changes,
    uneven_servers,
    slow_workers,
    overhead,
    unknown,
)

RULES_OF_ONE_MACHINE = (
    staying,
    reason,
    changes,
    backups,
    uneven_servers,
    slow_workers,
    overhead,
)


def sentences(case):
    """What all rules say of a decided `Case`, a list of texts."""
    rules = RULES_OF_A_CLUSTER if case.chosen else RULES_OF_ONE_MACHINE
    return [text for text in (rule(case) for rule in rules) if text]


def _backup_workers(case, prediction):
    method = case.methods[prediction.method].synchronization
    return getattr(method, "backup_workers", 0)


def _count(number, name):
    return f"{number} {name}{'' if number == 1 else 's'}"


def _rate(prediction):
    return f"{prediction.examples_per_second:,.0f} examples/s"


def _seconds(value):
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def _bytes(number):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"
