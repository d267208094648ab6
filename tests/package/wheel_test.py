#!/usr/bin/env python3
"""wheel_test.py BUILD SOURCE: makes the wheel of a build, installs it into a fresh virtual environment, and goes from data to a
trained model with a PATH that holds nothing but that environment: no compiler, no other Python.

torch is that of the Python which runs this test, so that nothing is downloaded. FVLM_WHEEL_FULL=1 trains the whole
quickstart and prints the seconds of every part, and of those the processors' own."""
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

build, source = map(pathlib.Path, sys.argv[1:3])
full = os.environ.get("FVLM_WHEEL_FULL") == "1"
scratch = pathlib.Path(tempfile.mkdtemp(prefix="fvlm-wheel-"))
env_folder, work = scratch / "env", scratch / "work"


def run(*words, **options):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def inside(*words):
    """Runs a program of the environment as a user would who has activated it and has nothing else."""
    started, before = time.monotonic(), processor_seconds()
    program = env_folder / "bin" / words[0]
    out = run(program, *words[1:], cwd=work, env={"PATH": str(env_folder / "bin"), "HOME": str(scratch / "home")})
    if full:
        print(f"{time.monotonic() - started:6.1f} s, {processor_seconds() - before:6.1f} s  {' '.join(map(str, words))}", flush=True)
    return out


def make_wheel():
    tree = scratch / "tree"
    run("cmake", "--install", build, "--prefix", tree, "--strip")
    version = run(tree / "bin/fvlm-engine", "--version").split()[1]
    wheel = pathlib.Path(run(sys.executable, source / "tools/make-wheel", tree, version, scratch).strip())
    megabytes = wheel.stat().st_size / 1e6
    assert megabytes < 100, f"{wheel.name} has {megabytes:.1f} MB"
    print(f"{wheel.name}: {megabytes:.1f} MB")
    again = pathlib.Path(run(sys.executable, source / "tools/make-wheel", tree, version, scratch / "again").strip())
    assert wheel.read_bytes() == again.read_bytes(), "the same tree gave another wheel"
    return wheel


def install(wheel):
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    run(sys.executable, "-m", "venv", "--without-pip", env_folder)
    site = next((env_folder / "lib").glob("python3*")) / "site-packages"
    (site / "torch").symlink_to(torch)
    if (torch.parent / "nvidia").exists():
        (site / "nvidia").symlink_to(torch.parent / "nvidia")
    run(sys.executable, "-m", "pip", "--python", env_folder / "bin/python", "install", "--no-index", "--no-deps", wheel)
    installed = importlib.metadata.Distribution.at(next(site.glob("fvlm_engine-*.dist-info")))
    assert [r.replace(" ", "") for r in installed.requires] == ["torch==2.11.0"], installed.requires
    missing = [str(file) for file in installed.files if not pathlib.Path(file.locate()).exists()]
    assert not missing, missing
    return site


def check_installation(site):
    doctor = json.loads(inside("fvlm-engine", "doctor", "--json"))
    assert doctor["LibTorch"]["text"].endswith(f"in {site / 'torch'}, found by {env_folder / 'bin/python3'}"), doctor
    plugins = json.loads(inside("fvlm-engine", "plugin", "list", "--json"))["plugins"]
    ready = {plugin["name"] for plugin in plugins if plugin["state"] == "ready"}
    on_cpu = {"attention-cpu", "kernels-cpu", "loss-chunked", "optimizer-adamw", "optimizer-muon", "packer-bestfit",
              "quantizer-cpu"}
    assert on_cpu <= ready, [(plugin["name"], plugin.get("reason")) for plugin in plugins]
    inside("fvlm-engine", "plugin", "new", "loss", "loss-mine", "--lang", "cpp")
    assert f"SDK ?= {env_folder}\n" in (work / "loss-mine/Makefile").read_text(), "the SDK of another installation"
    for page in ("man/man1/fvlm-engine.1", "bash-completion/completions/fvlm-engine", "doc/fvlm-engine/LICENSE"):
        assert (env_folder / "share" / page).stat().st_size > 1000, page


def train():
    recipe = env_folder / "share/fvlm/recipes/quickstart.lua"
    if full:
        inside("make-shapes", "--out", "data/shapes")
        inside("fvlm-engine", "train", recipe, "--device", "cpu")
    else:
        parts = "captions=400,text=100,questions=400,pairs=200,heldout/questions=40,heldout/pairs=40"
        inside("make-shapes", "--out", "data/shapes", "--samples", parts)
        inside("fvlm-engine", "train", recipe, "--device", "cpu", "--set", "stages.*.samples=320")
    run_folder = work / "runs/quickstart"
    shown = run_folder / "instruct/show/questions"
    clip = work / "clip"
    clip.mkdir()
    for frame in sorted(shown.glob("000-*.png")):
        shutil.copy(frame, clip)
    question = json.loads((shown / "000.json").read_text())["question"]
    answer = inside("fvlm-engine", "generate", run_folder, "--video", clip, "--prompt", question)
    assert answer.strip() or not full, "no answer" # a model of so few steps may say nothing
    inside("fvlm-engine", "report", run_folder)
    assert (run_folder / "report.html").stat().st_size > 10000


def main():
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("pip") is None:
        print("skipped: this Python has no torch or no pip")
        sys.exit(77)
    try:
        work.mkdir()
        (scratch / "home").mkdir()
        site = install(make_wheel())
        check_installation(site)
        started = time.monotonic()
        train()
        print(f"from data to a trained model: {time.monotonic() - started:.0f} s")
    finally:
        shutil.rmtree(scratch)


main()
