#!/usr/bin/env python3
"""track_test.py ENGINE SOURCE [PYTHON]: trains a short quickstart, gives its folder to MLflow and Weights & Biases with tools/track, and reads
what they got with their own packages. PYTHON has them; packages that are missing are left out,
and without both the test is skipped."""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

engine, source = map(pathlib.Path, sys.argv[1:3])


def run(*words, folder):
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def track(folder, *words):
    return run(sys.executable, source / "tools/track", "runs/quickstart", *words, folder=folder)


def expected(folder):
    """Name -> [(step, value)], read from metrics.jsonl by what METRICS.md says."""
    numbers = {}
    for line in map(json.loads, (folder / "runs/quickstart/metrics.jsonl").read_text().splitlines()):
        where = {"step": line["stage"], "evaluation": f"{line['stage']}/evaluation/{line.get('set')}/{line.get('mode')}"}
        for name, value in line.items():
            if line["kind"] in where and name != "step" and type(value) in (int, float):
                numbers.setdefault(f"{where[line['kind']]}/{name}", []).append((line["step"], value))
    return numbers


def check_mlflow(folder):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    # As if it were still training: half of the lines, then all of them.
    metrics = folder / "runs/quickstart/metrics.jsonl"
    whole = metrics.read_text()
    lines = whole.splitlines(keepends=True)
    half = len(lines) // 2
    metrics.write_text("".join(lines[:half]) + lines[half][:20])
    uri = f"file:{folder}/mlruns"
    assert f"{half} lines added" in track(folder, "--mlflow", uri)
    metrics.write_text(whole)
    assert f"{len(lines) - half} lines added" in track(folder, "--mlflow", uri)
    assert "0 lines added" in track(folder, "--mlflow", uri)

    client = MlflowClient(tracking_uri=uri)
    [found] = client.search_runs([client.get_experiment_by_name("quickstart").experiment_id])
    numbers = expected(folder)
    assert set(found.data.metrics) == set(numbers), set(found.data.metrics) ^ set(numbers)
    for name, values in numbers.items():
        history = sorted((metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name))
        assert history == sorted(values), f"{name}: {history}, not {values}"
    times = [metric.timestamp for metric in client.get_metric_history(found.info.run_id, "align/loss")]
    assert times == sorted(times) and found.info.start_time <= times[0] <= found.info.end_time, times
    assert found.data.params["stages.align.objective.0.kind"] == "next_token", found.data.params
    assert {file.path for file in client.list_artifacts(found.info.run_id)} == {"plan.json", "report.html"}


def records_of(file):
    """Of a .wandb file: a header of 7 bytes, then LevelDB's log: blocks of 32 KiB with pieces of checksum, length and type."""
    data, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        record += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4): # whole, or the last piece
            yield record
            record = b""


def check_wandb(folder):
    from wandb.proto import wandb_internal_pb2

    assert "wandb sync" in track(folder, "--wandb", "offline")
    [file] = (folder / "offline/wandb").glob("offline-run-*/*.wandb")
    numbers, config = {}, {}
    for data in records_of(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            config.update({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.run.config.update})
        if record.WhichOneof("record_type") != "history":
            continue
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            if "/" in name and not name.endswith("/step"):
                numbers.setdefault(name, []).append((items[name.split("/")[0] + "/step"], value))
    assert numbers == expected(folder), {name for name, values in expected(folder).items() if numbers.get(name) != values}
    assert config["name"] == "quickstart" and "model" in config, config
    assert (file.parent / "files/report.html").stat().st_size > 10000


def main():
    other = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
    if other and other.exists():
        os.execv(other, [str(other), __file__, str(engine), str(source)])
    checks = [check for name, check in (("mlflow", check_mlflow), ("wandb", check_wandb)) if importlib.util.find_spec(name)]
    if not checks:
        print("skipped: neither mlflow nor wandb is installed")
        sys.exit(77)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fvlm-track-"))
    try:
        parts = "captions=100,text=50,questions=100,pairs=50,heldout/questions=20,heldout/pairs=20"
        run(engine.parent / "make-shapes", "--out", "data/shapes", "--samples", parts, folder=folder)
        run(engine, "train", source / "recipes/quickstart.lua", "--device", "cpu", "--set", "stages.*.samples=320", folder=folder)
        for check in checks:
            check(folder)
            print(f"{check.__name__}: passed")
    finally:
        shutil.rmtree(folder)


main()
