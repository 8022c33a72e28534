"""Runs programs interleaved and compares them within a round.

A contender is a process that prints `ready`, then runs once per line on its standard input and prints its time as one line
of JSON: {"seconds": .., "processor_seconds": .., "peak_rss_bytes": ..}. `processor_seconds` is the CPU time of all threads
over their number. All contenders stay alive; while one runs the others wait on their pipes.
"""

import json
import os
import statistics
import subprocess
import sys
import time

# glibc keeps freed memory instead of returning it and faulting it in again.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "67108864",
}
SLICE = 0.01
# Pause before each call: worker threads of a library may spin long after its call has returned (ONNX Runtime, Intel's
# OpenMP) and slow the next contender.
PAUSE = 0.3
# Calls of fewer seconds run twice: after the pause the first wakes threads and fills caches.
SHORT = 1.0


class Process:
    """Contender in a process."""

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
            sys.exit(f"{self.name}: exited with code {self.process.wait()}")
        return line.strip()

    def turn(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.read())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def albert(path, arguments):
    """`albert bench` with `arguments`, one round per line."""
    return Process("albert", [path, "bench", *arguments, "--turns"], says_ready=False)


def rounds(contenders, count):
    """Runs `count` rounds of all contenders after a warm-up round; yields the results of each round, one per contender, and the
    state of the machine in it."""
    try:
        for contender in contenders:
            contender.wait_until_ready()
        for number in range(count + 1):
            results, start, others = [], time.perf_counter(), seconds_of_others(contenders)
            for contender in contenders:
                time.sleep(PAUSE)
                called = time.perf_counter()
                took = contender.turn()
                if time.perf_counter() - called < SHORT:
                    took = contender.turn()
                results.append(took)
            seconds = time.perf_counter() - start
            load = max(0.0, seconds_of_others(contenders) - others) / seconds
            time.sleep(PAUSE)
            if number > 0:
                yield results, {"seconds": seconds, "load": load, "copy_gbs": copy_gbs()}
    finally:
        for contender in contenders:
            contender.end()


def seconds_of_others(contenders):
    """CPU time since boot that neither this process nor a contender used, with that of other virtual machines (steal)."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    ticks = user + nice + system + irq + softirq + steal
    for process in ["self", *(contender.process.pid for contender in contenders)]:
        with open(f"/proc/{process}/stat") as file:
            # The second field, the name, may contain blanks.
            ticks -= sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def copy_gbs():
    """Bandwidth of a copy of 64 MiB on one thread, read and written: the best of three."""
    import numpy

    source, target = numpy.ones(2**23), numpy.zeros(2**23)
    seconds = min(once(lambda: numpy.copyto(target, source), 1)["seconds"] for _ in range(3))
    return 2e-9 * source.nbytes / seconds


def peak_rss():
    """Peak RSS of this process since `forget_peak`."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def forget_peak():
    # ru_maxrss is inherited across fork and exec; this counter is not, once it is reset.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def once(call, threads):
    """Time and result of one call."""
    start, used = time.perf_counter(), time.process_time()
    result = call()
    return {
        "seconds": time.perf_counter() - start,
        "processor_seconds": (time.process_time() - used) / threads,
        "result": result,
    }


def best(call, threads):
    """Minimum of each figure over the calls of a slice."""
    start, calls = time.perf_counter(), []
    while not calls or time.perf_counter() - start < SLICE:
        calls.append(once(call, threads))
    return {key: min(took[key] for took in calls) for key in ("seconds", "processor_seconds")}


def serve(measure):
    """Runs `measure()` per line: the other end of `Process`."""
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps({**measure(), "peak_rss_bytes": peak_rss()}), flush=True)


def serve_best(call, threads):
    """Runs `best` per line, after two warm-up calls."""
    call()
    call()
    serve(lambda: best(call, threads))


def compare(ours, theirs):
    """Median over the rounds of their time over ours: wall time, CPU time."""
    ratio = lambda key: statistics.median(b[key] / a[key] for a, b in zip(ours, theirs))
    return ratio("seconds"), ratio("processor_seconds")


def flatten(record):
    """Converts a record of `albert bench` to the format of the other contenders."""
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
