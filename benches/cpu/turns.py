"""Lets programs take turns, and compares them within a round.

A contender is a process that prints `ready`, then for each line on its standard input runs once and prints what that took
as one line of JSON: {"seconds": .., "processor_seconds": .., "peak_rss_bytes": ..}. The time on processors is that of all
threads over their number. All contenders stay alive; while one runs the others wait on their pipes.
"""

import json
import os
import statistics
import subprocess
import sys
import time

# glibc keeps what is freed instead of giving it back and having it faulted in again.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "67108864",
}
SLICE = 0.01
# Worker threads of a library may go on looking for work long after its call has returned (ONNX Runtime's, Intel's OpenMP),
# on a processor that the next contender needs.
PAUSE = 0.3
# A turn below so many seconds is taken twice: after a pause the first wakes threads and fills caches.
SHORT = 1.0


class Process:
    """A contender behind pipes."""

    def __init__(self, name, command, environment=None, says_ready=True):
        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
        )
        self.waits = says_ready

    def wait_until_ready(self):
        if self.waits and self.read() != "ready":
            sys.exit(f"{self.name}: did not become ready")

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name}: ended with code {self.process.wait()}")
        return line.strip()

    def turn(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.read())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def albert(path, arguments):
    """`albert bench` with `arguments`, taking turns."""
    return Process("albert", [path, "bench", *arguments, "--turns"], says_ready=False)


def rounds(contenders, count):
    """`count` rounds of all contenders, after one that does not count; a list a contender."""
    for contender in contenders:
        contender.wait_until_ready()
    results = [[] for _ in contenders]
    for number in range(count + 1):
        for contender, result in zip(contenders, results):
            time.sleep(PAUSE)
            start = time.perf_counter()
            took = contender.turn()
            if time.perf_counter() - start < SHORT:
                took = contender.turn()
            if number > 0:
                result.append(took)
    for contender in contenders:
        contender.end()
    return results


def peak_rss():
    """The most memory that this process held at once since `forget_peak`."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def forget_peak():
    # ru_maxrss is inherited across fork and exec; this counter is not, once it is reset.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def once(call, threads):
    """What one call took, and what it gave."""
    start, used = time.perf_counter(), time.process_time()
    result = call()
    return {
        "seconds": time.perf_counter() - start,
        "processor_seconds": (time.process_time() - used) / threads,
        "result": result,
    }


def best(call, threads):
    """The best of as many calls as fit into a slice, each figure by itself."""
    start, calls = time.perf_counter(), []
    while not calls or time.perf_counter() - start < SLICE:
        calls.append(once(call, threads))
    return {key: min(took[key] for took in calls) for key in ("seconds", "processor_seconds")}


def serve(measure):
    """The other end of `Process`: `measure()` for each line, from a process that is warm."""
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps({**measure(), "peak_rss_bytes": peak_rss()}), flush=True)


def serve_best(call, threads):
    """`best` for each line, after two calls that do not count."""
    call()
    call()
    serve(lambda: best(call, threads))


def compare(ours, theirs):
    """The median over the rounds of their time over ours: by the wall, by time on processors."""
    ratio = lambda key: statistics.median(b[key] / a[key] for a, b in zip(ours, theirs))
    return ratio("seconds"), ratio("processor_seconds")


def flatten(record):
    """A record of `albert bench` as the other contenders put it."""
    return {
        "seconds": record["seconds"]["median"],
        "processor_seconds": record["processor_seconds"]["median"],
        "peak_rss_bytes": record["peak_rss_bytes"],
        "flops": record["flops"],
        "bytes": record["bytes"],
        "tokens": record["tokens"],
        "peak_gflops": record["peak_gflops"],
        "copy_gbs": record["copy_gbs"],
    }
