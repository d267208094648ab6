"""The events files, read by TensorBoard's own reader: tensorboard_test.py METRICS_PROBE. Without its wheel: skipped."""
import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np
    from tensorboard.backend.event_processing import event_file_loader
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as missing:
    print(f"skipped: {missing}; ./scripts/setup --oracles installs it")
    sys.exit(77)


def tag(line, name):
    if line["kind"] == "step":
        return f"{line['stage']}/{name}"
    return f"{line['stage']}/evaluation/{line['set']}/{line['mode']}/{name}"


class TensorBoard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.run_folder = Path(cls.folder.name)
        subprocess.run([probe, cls.run_folder], check=True)
        cls.lines = [json.loads(line) for line in (cls.run_folder / "metrics.jsonl").read_text().splitlines()]
        cls.events_files = list(cls.run_folder.glob("events.out.tfevents.*"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_every_value_of_the_metrics_file_is_there_at_its_step(self):
        seen = EventAccumulator(str(self.run_folder), size_guidance={"scalars": 0})
        seen.Reload()
        expected = {}
        words = {"kind", "stage", "step", "set", "mode", "measure", "what", "text"}
        for line in self.lines:
            for name, value in line.items():
                if name not in words:
                    expected.setdefault(tag(line, name), []).append((line["step"], value))
        self.assertEqual(sorted(seen.Tags()["scalars"]), sorted(expected))
        self.assertEqual(len(expected["align/loss"]), 500)
        compared = 0
        for name, values in expected.items():
            got = seen.Scalars(name)
            self.assertEqual([e.step for e in got], [step for step, _ in values], name)
            for event, (step, value) in zip(got, values):
                with np.errstate(over="ignore"):
                    wanted = float(np.float32(value)) if value is not None else None
                if value is None:
                    self.assertFalse(math.isfinite(event.value), f"{name} at {step}: {event.value}")
                else:
                    self.assertEqual(event.value, wanted, f"{name} at {step}")
                compared += 1
        self.assertEqual(compared, 4 * 500 + 8 + 2)

    def test_the_loader_takes_every_record_for_whole(self):
        self.assertEqual(len(self.events_files), 1)
        events = list(event_file_loader.EventFileLoader(str(self.events_files[0])).Load())
        self.assertEqual(events[0].file_version, "brain.Event:2")
        self.assertEqual(len(events), 1 + 500 + 1 + 1)
        times = [event.wall_time for event in events]
        self.assertEqual(times, sorted(times))
        self.assertLess(abs(times[0] - self.events_files[0].stat().st_mtime), 60)

    def test_what_is_not_finite_stays_what_it_was(self):
        seen = EventAccumulator(str(self.run_folder))
        seen.Reload()
        value = {name: seen.Scalars(f'edges of "numbers" ä/{name}')[0].value
                 for name in ("infinite", "nan", "beyond", "minus_zero")}
        self.assertEqual(value["infinite"], math.inf)
        self.assertTrue(math.isnan(value["nan"]))
        self.assertEqual(value["beyond"], -math.inf)
        self.assertEqual(math.copysign(1, value["minus_zero"]), -1)


if __name__ == "__main__":
    probe = sys.argv.pop(1)
    unittest.main()
