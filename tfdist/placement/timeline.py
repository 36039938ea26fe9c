"""A simulated time of one training step of a placed model.

Each device runs one thing at a time: of what is ready, what became ready
first, as TensorFlow's executor does. What goes from one device to another
travels while both compute; between two devices, in one direction, one thing
follows the other.
"""

import heapq

from tfdist.event_queue import EventQueue


def longest_paths(graph, seconds, transfers=None):
    """The longest way from each node's begin to an end.

    Args:
      graph: A `CostGraph`.
      seconds: Of each node, in the order of `graph.nodes`.
      transfers: Function of an `Edge` to seconds; None: 0.

    Returns:
      Seconds, a list in the order of `graph.nodes`.
    """
    longest = [0.0] * len(graph.nodes)
    for number in reversed(graph.order):
        behind = (
            longest[graph.index[edge.consumer]]
            + (transfers(edge) if transfers else 0.0)
            for edge in graph.outgoing[number]
        )
        longest[number] = seconds[number] + max(behind, default=0.0)
    return longest


class Simulator:
    """Steps of one graph on the same devices, placed in different ways.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.
    """

    def __init__(self, graph, devices):
        self._devices = devices
        self._size = size = len(graph.nodes)
        # Tasks: forward passes in the order of nodes, then backward passes.
        self._seconds = [node.forward_seconds for node in graph.nodes]
        self._seconds += [node.backward_seconds for node in graph.nodes]
        self._waits = [len(edges) for edges in graph.incoming]
        self._waits += [1 + len(edges) for edges in graph.outgoing]
        place = {number: at for at, number in enumerate(graph.order)}
        self._rank = [place[number] for number in range(size)]
        self._rank += [2 * size - place[number] for number in range(size)]
        self._most = [node.output_bytes for node in graph.nodes]
        self._forward = [
            [(graph.index[edge.consumer], edge.bytes) for edge in edges]
            for edges in graph.outgoing
        ]
        self._back = [
            [(graph.index[edge.producer], edge.gradient_bytes) for edge in some]
            for some in graph.incoming
        ]

    def seconds(self, assignment):
        """Seconds until all is done.

        Args:
          assignment: Number of the device of each node, a list.

        Returns:
          A float.
        """
        return max(self.run(assignment)[1])

    def run(self, assignment):
        """One step.

        The backward pass of a node begins when its own forward pass and the
        backward passes of all its consumers are done and their gradients,
        each by itself, have come. What a node sends to a device travels once,
        for all consumers there.

        Args:
          assignment: Number of the device of each node, a list.

        Returns:
          As `play`, of all forward passes and then all backward passes; links
          are pairs of devices.
        """
        return play(
            self._seconds,
            2 * list(assignment),
            self._waits,
            self._rank,
            lambda task: self._after(task, assignment),
        )

    def _after(self, task, assignment):
        """Returns the tasks that a task's end releases, and its transfers."""
        size = self._size
        node = task % size
        home = assignment[node]
        here, sent = [], {}
        if task < size:
            here.append(task + size)
            for consumer, num_bytes in self._forward[node]:
                device = assignment[consumer]
                if device == home:
                    here.append(consumer)
                else:
                    before, consumers = sent.get(device, (0, ()))
                    num_bytes = min(before + num_bytes, self._most[node])
                    sent[device] = num_bytes, (*consumers, consumer)
            gone = sent.items()
        else:
            gone = []
            for producer, num_bytes in self._back[node]:
                device = assignment[producer]
                if device == home:
                    here.append(producer + size)
                else:
                    gone.append((device, (num_bytes, (producer + size,))))
        transfer_seconds = self._devices.transfer_seconds
        return here, [
            # Nothing takes no time, and no place on the link.
            ((home, device), transfer_seconds(size), tasks)
            if size
            else (None, 0.0, tasks)
            for device, (size, tasks) in gone
        ]


def play(seconds, homes, waits, rank, after):
    """Plays tasks on devices, each of which runs one at a time.

    Args:
      seconds: Of each task, a list.
      homes: The device of each, a list.
      waits: For how many others each waits, a list.
      rank: Numbers: of tasks that became ready at once on one device the
        least runs first.
      after: Function of a task that has ended: the tasks that are released at
        once, and (link, seconds, tasks) of each message that is sent for
        others. Messages of one link follow each other; None: no link.

    Returns:
      When each task begins and ends, two lists; and (task, link, begin, end)
      of each message that takes a link.
    """
    begins, ends = [0.0] * len(seconds), [0.0] * len(seconds)
    ready = {home: [] for home in sorted(set(homes))}
    idle = dict.fromkeys(ready, True)
    links, messages = {}, []
    queue = EventQueue()
    # Those that wait for nothing are released by that.
    first = [task for task, number in enumerate(waits) if not number]
    waits = [max(number, 1) for number in waits]

    def release(tasks):
        for task in tasks:
            waits[task] -= 1
            if not waits[task]:
                heapq.heappush(
                    ready[homes[task]], (queue.now, rank[task], task)
                )

    def end(task):
        now = queue.now
        idle[homes[task]] = True
        here, sent = after(task)
        for link, duration, others in sent:
            comes = now
            if link is not None:
                begin = max(now, links.get(link, 0.0))
                comes = links[link] = begin + duration
                messages.append((task, link, begin, comes))
            queue.at(comes, release, others)
        release(here)

    queue.at(0.0, release, first)
    for now in queue.moments():
        for home, waiting in ready.items():
            if idle[home] and waiting:
                task = heapq.heappop(waiting)[2]
                idle[home] = False
                begins[task] = now
                ends[task] = now + seconds[task]
                queue.at(ends[task], end, task)
    return begins, ends, messages
