"""One thread that does what training must not wait for."""

import concurrent.futures
import queue
import threading
import weakref


class Background:
    """Runs functions one after the other, in a thread that ends with it.

    A daemon: what hangs there, on a file system that is gone, holds up
    neither the training nor the end of the process. In this thread no
    `tf.distribute` strategy is in scope.
    """

    def __init__(self, name):
        self._jobs = queue.SimpleQueue()
        threading.Thread(
            target=_run, args=(self._jobs,), name=name, daemon=True
        ).start()
        self._finalizer = weakref.finalize(self, self._jobs.put, None)

    def submit(self, function, *arguments):
        """Runs `function(*arguments)` there.

        Returns:
          A `concurrent.futures.Future`.
        """
        future = concurrent.futures.Future()
        self._jobs.put((future, function, arguments))
        return future

    def close(self):
        """Ends the thread after what it has been given."""
        self._finalizer()


def _run(jobs):
    while (job := jobs.get()) is not None:
        future, function, arguments = job
        try:
            result = function(*arguments)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        # What it was about is nobody's while the thread waits for more.
        del job, future, function, arguments


def outside_scopes(function, *arguments):
    """Returns what `function` returns where no strategy is in scope.

    Scopes belong to threads: it is called in another one. For what is quick.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *arguments).result()
