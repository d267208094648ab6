"""Runs training steps on request, captured as a CUDA graph or not, and says how long they took."""
import json
import sys
import time

import torch

BEFORE_CAPTURE = 3  # eager steps that CUDA graph capture needs beforehand
HOW = ("eager", "graph", "compiled", "compiled-graph")


def serve(step, loss, captures, device):
    """Each line of standard input is the number of steps to run next; the answer is a line of JSON. step() leaves its loss in
    the tensor `loss`."""
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
        times, cpu_times = [], []
        for _ in range(int(line)):
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
        peak = torch.cuda.max_memory_reserved() if on_gpu else 0
        print(json.dumps({"times_ms": times, "cpu_ms": cpu_times, "loss": loss.item(), "peak_bytes": peak}), flush=True)
