"""tools/sanitize with an engine and a compute-sanitizer that are scripts: what it asks for, what it says, and how it ends.

usage: sanitize_test.py TOOLS_SANITIZE"""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sanitize = sys.argv.pop()
ROWS = ("library.opens", "loss.forward", "loss.backward", "loss.memory_flat", "loss.two_threads")
ENGINE = f"""#!{sys.executable}
import json, sys
only = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else None
rows = [row for row in {ROWS!r} if not only or row in only or row.startswith("library.")]
if "--json" in sys.argv:
    print(json.dumps({{"checks": [{{"name": row, "result": "ok", "seconds": 1, "text": ""}} for row in rows]}}))
else:
    for row in rows:
        print(f"ok      {{row}}   what it is", flush=True)
"""
# Where RACES says so, backward passes race.
SANITIZER = f"""#!{sys.executable}
import os, subprocess, sys
command = " ".join(sys.argv)
print("========= COMPUTE-SANITIZER", flush=True)
if "two_threads" in command and "racecheck" in command:
    print("========= Internal Sanitizer Error: Detected a failure to track a kernel launch.", flush=True)
if "backward" in command and os.environ.get("RACES"):
    print("========= Error: Race reported between Write access at", os.environ["RACES"], flush=True)
engine = next(i for i, word in enumerate(sys.argv) if word.endswith("fvlm-engine"))
sys.exit(subprocess.run(sys.argv[engine:]).returncode)
"""


class Sanitize(unittest.TestCase):
    def run_tool(self, races="", *options):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("fvlm-engine", ENGINE), ("compute-sanitizer", SANITIZER)):
                path = Path(folder) / name
                path.write_text(text)
                path.chmod(0o755)
            environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "RACES": races}
            command = [sys.executable, sanitize, "--engine", f"{folder}/fvlm-engine", "--logs", f"{folder}/logs", "--seconds", "60",
                       *options, "loss-cuda"]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800)
            return done.returncode, done.stdout + done.stderr

    def test_every_row_but_those_that_a_tool_cannot_follow_is_asked_for(self):
        code, said = self.run_tool()
        self.assertEqual(code, 0, said)
        self.assertIn("loss-cuda: 5 rows ok without a tool", said)
        self.assertRegex(said, r"memcheck +loss-cuda +3 of 3 rows, 0 failed, 0 complaints\n")
        self.assertRegex(said, r"racecheck +loss-cuda +2 of 2 rows, 0 failed, 0 complaints\n")

    def test_what_time_did_not_allow_is_an_error_that_names_the_rows(self):
        code, said = self.run_tool("", "--seconds", "0")
        self.assertEqual(code, 1, said)
        self.assertIn("FAILED no time was left", said)

    def test_a_hazard_of_ours_is_an_error_and_one_of_a_library_is_counted_apart(self):
        code, said = self.run_tool("fvlm::plugins::backward")
        self.assertEqual(code, 1, said)
        self.assertIn("1 x Error: Race reported between Write access at fvlm::plugins::backward", said)
        code, said = self.run_tool("cudnn_generated")
        self.assertEqual(code, 0, said)
        self.assertIn("0 complaints, 1 of libraries' kernels", said)


if __name__ == "__main__":
    unittest.main()
