"""Which threads of a process enter TensorFlow's eager runtime, and with what.

What enters it ends in one of some functions of TensorFlow's C interface. Python
tells a profiler of calls of C functions, before they are made.
"""

import threading

# Operations and functions, and making a function known. Not taking one away:
# Python's garbage is collected in any thread.
_ENTRANCES = (
    "TFE_Py_Execute",
    "TFE_Py_FastPathExecute",
    "TFE_ContextAddFunction",
)
# What does not reach out of this process: reading a variable of its own. By
# the function that does it, the argument whose device shows that.
_LOCAL = {"read_variable_op": "resource", "identity": "input"}
# A thread all of whose operations are of this process.
_LOCAL_THREAD = "tfdist-iterators"


def watch():
    """Watches the threads that are started from now on, but not this one.

    Returns:
        A list to which is added, for each call, the thread's name and the
        names of the functions that made it, innermost first.
    """
    seen = []

    def look(frame, event, function):
        name = getattr(function, "__name__", "")
        if event != "c_call" or not name.startswith(_ENTRANCES):
            return
        if threading.current_thread().name == _LOCAL_THREAD:
            return
        argument = _LOCAL.get(frame.f_code.co_name)
        if argument and "/job:worker/" in frame.f_locals[argument].device:
            return
        callers = [name]
        while frame is not None:
            callers.append(frame.f_code.co_name)
            frame = frame.f_back
        seen.append(f"{threading.current_thread().name}: {callers[:12]}")

    threading.setprofile(look)
    return seen
