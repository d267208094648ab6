"""Runs training steps on request, captured as a CUDA graph or not, and says how long they took."""
import json
import sys
import time

import torch

BEFORE_CAPTURE = 3  # eager steps that CUDA graph capture needs beforehand
HOW = ("eager", "graph", "compiled", "compiled-graph")


def serve(step, loss, captures, device, prepare, waiting_bytes):
    """Each line of standard input is the number of steps to run next, or "for SECONDS": as many as that takes. The answer is
    a line of JSON. prepare(n) puts the data of step n where step() reads them, which is not timed; step() leaves its loss in the
    tensor `loss`. The peak does not count `waiting_bytes`, of data that wait for their step."""
    on_gpu = device.startswith("cuda")

    def captured():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    def finish():
        if on_gpu:
            torch.cuda.synchronize()

    side_stream = torch.cuda.Stream() if on_gpu else None
    run, taken = step, 0
    for line in sys.stdin:
        times, cpu_times, begun = [], [], time.perf_counter()
        lasts = line.startswith("for ")
        wanted = float(line.split()[1]) if lasts else int(line)
        while (not times or time.perf_counter() - begun < wanted) if lasts else len(times) < wanted:
            prepare(taken)
            finish()
            started, started_cpu = time.perf_counter(), time.process_time()
            if captures and taken < BEFORE_CAPTURE:
                with torch.cuda.stream(side_stream):
                    run()
            else:
                if captures and taken == BEFORE_CAPTURE:
                    run = captured()
                run()
            taken += 1
            finish()
            times.append((time.perf_counter() - started) * 1e3)
            cpu_times.append((time.process_time() - started_cpu) * 1e3)
        peak = torch.cuda.max_memory_reserved() - waiting_bytes if on_gpu else 0
        print(json.dumps({"times_ms": times, "cpu_ms": cpu_times, "loss": loss.item(), "peak_bytes": peak}), flush=True)
