#!/usr/bin/env python3
"""trace_file_test.py ENGINE SOURCE: `train --profile` writes a trace in Chrome's format whose spans nest, have a parent where they should,
and cover the steps; and trains the same numbers as without it."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

engine, source = map(pathlib.Path, sys.argv[1:3])


def run(*words, folder, code=0):
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def train(folder, name, *words, code=0):
    return run(engine, "train", source / "recipes/quickstart.lua", "--device", "cpu", "--run-dir", name, "--set",
               "stages.*.samples=320", *words, folder=folder, code=code)


def rows_of(file):
    """(process, thread) -> spans (name, begin, end) in whole nanoseconds, the outer one first."""
    document = json.loads(file.read_text())
    names, rows = {}, {}
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            names[event["name"], event["pid"], event.get("tid")] = event["args"]["name"]
            continue
        assert event["ph"] == "X" and event["dur"] > 0 and event["ts"] >= 0, event
        begin = round(event["ts"] * 1000)
        rows.setdefault((event["pid"], event["tid"]), []).append((event["name"], begin, begin + round(event["dur"] * 1000)))
    for pid, tid in rows:
        assert ("process_name", pid, None) in names and ("thread_name", pid, tid) in names, names
    return {key: sorted(spans, key=lambda span: (span[1], -span[2])) for key, spans in rows.items()}


def parents_of(spans):
    """The parent of each span; fails where two overlap and neither is inside the other."""
    parents, open_spans = [], []
    for span in spans:
        while open_spans and open_spans[-1][2] <= span[1]:
            open_spans.pop()
        assert not open_spans or span[2] <= open_spans[-1][2], f"{span} crosses the end of {open_spans[-1]}"
        parents.append(open_spans[-1] if open_spans else None)
        open_spans.append(span)
    return parents


def check(file, first, last):
    rows = rows_of(file)
    spans = rows[1, 0]
    parents = parents_of(spans)
    steps = [span for span in spans if span[0].startswith("step ")]
    assert [span[0] for span in steps] == [f"step {i}" for i in range(first, last + 1)], steps
    for before, after in zip(steps, steps[1:]):
        assert before[2] <= after[1], f"{before} and {after} overlap"
    for step in steps:
        children = [span for span, parent in zip(spans, parents) if parent == step]
        names = [span[0] for span in children]
        for name in ("data", "pack", "forward-backward", "optimizer"):
            assert names.count(name) >= 1, f"{step[0]} has no {name}: {names}"
        covered = sum(span[2] - span[1] for span in children)
        assert covered >= 0.9 * (step[2] - step[1]), f"{step[0]}: its parts are {covered} of {step[2] - step[1]} ns"
    whole = [span for span in spans if span[0] == "forward-backward"]
    inside = {span[0] for span, parent in zip(spans, parents) if parent in whole}
    assert {"decoder", "head", "backward"} <= inside, inside
    outside = {span[0] for span, parent in zip(spans, parents) if parent in steps}
    assert outside <= {"data", "pack", "forward-backward", "optimizer", "metrics", "checkpoint", "evaluation"}, outside
    backward = [span for span in spans if span[0] == "backward"]
    pieces = {span[0] for span, parent in zip(spans, parents) if parent in backward}
    assert "decoder backward" in pieces and "vision backward" in pieces, pieces
    for key, others in rows.items():
        parents_of(others)
    return spans, rows


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fvlm-trace-"))
    try:
        parts = "captions=100,text=50,questions=100,pairs=50,heldout/questions=20,heldout/pairs=20"
        run(engine.parent / "make-shapes", "--out", "data/shapes", "--samples", parts, folder=folder)
        # Ten steps a stage: the range crosses the end of the first two stages, an evaluation and checkpoints.
        said = train(folder, "traced", "--profile", "8-21")
        assert "traced/trace.json" in said, said
        spans, rows = check(folder / "traced/trace.json", 8, 21)
        names = [span[0] for span in spans]
        assert "evaluation" in names and names.count("checkpoint") >= 2, names
        threads = len(os.sched_getaffinity(0))
        assert len(rows) >= min(threads, 2), f"{len(rows)} rows with {threads} processors: replicas of threads are missing"

        train(folder, "plain")
        for step in ("align/step-000010", "prefer/step-000010"):
            a, b = (folder / name / step / "model.safetensors" for name in ("traced", "plain"))
            weights = [sorted(path.rglob("*.safetensors")) for path in (a.parent, b.parent)]
            assert weights[0] and [file.read_bytes() for file in weights[0]] == [file.read_bytes() for file in weights[1]], step
        assert not (folder / "plain/trace.json").exists()

        assert "was to begin with step 100" in train(folder, "late", "--profile", "100-101", "--max-steps", "2")
        for wrong in ("0", "9-3", "x", "3-", "-4"):
            assert f"got '{wrong}'" in train(folder, "never", f"--profile={wrong}", code=2)
        assert "mutually exclusive" in train(folder, "never", "--profile", "3", "--find-batch", code=2)
    finally:
        shutil.rmtree(folder)


main()
