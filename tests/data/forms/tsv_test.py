"""Against Python's csv module, with which pandas and VLMEvalKit write .tsv: tsv_test.py FORM_PROBE. What it writes is read back as it is."""
import csv
import json
import random
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


class Tsv(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name) / "a.tsv"

    def write(self, rows, **dialect):
        with self.path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="\t", quotechar='"', **dialect).writerows(rows)

    def read(self):
        done = subprocess.run([probe, self.path], capture_output=True, check=True)
        return [json.loads(line) for line in done.stdout.decode().splitlines()]

    def test_random_tables_are_read_back(self):
        pieces = ["a", "Ä", "\t", "\n", '"', '""', " ", "\r\n", "B2", "[1, 'x']", "\u00a0"]
        for seed in range(60):
            drawn = random.Random(seed)
            columns = [f"c{i}" for i in range(drawn.randint(2, 6))]
            rows = [["".join(drawn.choice(pieces) for _ in range(drawn.randint(0, 6))) for _ in columns] for _ in range(20)]
            for row in rows:
                row[0] = "x" + row[0]  # a row of nothing is no row
            quoting = drawn.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
            self.write([columns, *rows], lineterminator=drawn.choice(["\n", "\r\n"]), quoting=quoting)
            expected = [{name: field or None for name, field in zip(columns, row, strict=True)} for row in rows]
            self.assertEqual(self.read(), expected, f"seed {seed}")

    def test_large_fields_take_the_memory_of_a_row(self):
        size, count = 4 << 20, 64
        with self.path.open("w", encoding="utf-8") as file:
            file.write("index\timage\n")
            for i in range(count):
                file.write(f"{i}\t{'Q' * size}\n")
        with subprocess.Popen([probe, self.path], stdout=subprocess.PIPE) as process:
            sizes = [len(line) for line in process.stdout]
        self.assertEqual(process.returncode, 0)
        self.assertEqual(len(sizes), count)
        self.assertTrue(all(each > size for each in sizes))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        self.assertLess(peak, count * size // 4, "bytes at most")


if __name__ == "__main__":
    probe = sys.argv.pop(1)
    unittest.main()
