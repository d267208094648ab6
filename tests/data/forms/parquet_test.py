"""Against pyarrow: parquet_test.py FORM_PROBE. Whatever it writes is read back as it is, or refused with a reason.

parquet_test.py --fixture OUT writes samples.parquet, the samples of made_forms.cpp as Hugging Face's datasets have them.
"""
import base64
import datetime
import io
import json
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    print(f"Skipped\npyarrow is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)


def image_bytes(number, part):
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (9 + part, 7), (10 * number % 256, 100 * part, 200 - number)).save(out, "png")
    return out.getvalue()[: len(out.getvalue()) // 2] if number == 6 else out.getvalue()


def gif_bytes(number):
    from PIL import Image

    colors = [(0, 0, 0), (255, 0, 0), (0, 255, 0), (32, 64, 255)]
    frames = [Image.new("RGB", (6, 5), colors[index]) for index in (number % 4, 3, 1)]
    out = io.BytesIO()
    frames[0].save(out, "gif", save_all=True, append_images=frames[1:], duration=1000, disposal=0)
    return out.getvalue()


def fixture(out):
    rows = []
    for number in range(24):
        images = []
        if number % 3 == 2 and number not in (8, 16):
            images = [gif_bytes(number)]
        elif number not in (8, 16):
            images = [image_bytes(number, part) for part in range(2 if number % 3 == 1 else 1)]
        answer = "" if number == 9 else f"number {number}"
        rows.append({
            "images": [{"bytes": each, "path": None} for each in images],
            "conversations": [{"from": "human", "value": "<image>\n" * len(images) + f"which is {number}?"},
                              {"from": "gpt", "value": answer}],
        })
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    turn = pa.struct([("from", pa.string()), ("value", pa.string())])
    schema = pa.schema([("images", pa.list_(image)), ("conversations", pa.list_(turn))])
    pq.write_table(pa.Table.from_pylist(rows, schema), out, row_group_size=7, data_page_size=300, write_batch_size=2)


draw = random.Random(3)


def rows_of_everything(count):
    def maybe(value):
        return None if draw.random() < 0.2 else value

    rows = []
    for i in range(count):
        rows.append({
            "id": i,
            "small": maybe(draw.randint(-100, 100)),
            "big": maybe(draw.randint(-(2**62), 2**62)),
            "unsigned": maybe(draw.randint(0, 2**64 - 1)),
            "unsigned32": maybe(draw.randint(0, 2**32 - 1)),
            "real": maybe(draw.random()),
            "single": maybe(draw.randint(0, 1000) / 8),
            "yes": maybe(draw.random() < 0.5),
            "text": maybe(draw.choice(["red", "green", "bl\u00fce", "", "x" * draw.randint(0, 300)])),
            "large": maybe("y" * draw.randint(0, 20)),
            "raw": maybe(draw.randbytes(draw.randint(0, 400))),
            "fixed": maybe(draw.randbytes(6)),
            "when": maybe(datetime.datetime(2024, 1, 1 + i % 28)),
            "image": maybe({"bytes": maybe(draw.randbytes(draw.randint(0, 900))), "path": maybe(f"{i}.png")}),
            "list": maybe([maybe(draw.randint(0, 9)) for _ in range(draw.randint(0, 4))]),
            "nested": maybe([maybe([maybe(f"{draw.randint(0, 99)}") for _ in range(draw.randint(0, 3))])
                             for _ in range(draw.randint(0, 3))]),
            "turns": maybe([maybe({"role": "user", "content": [{"type": "text", "text": maybe("z" * draw.randint(0, 9))}
                                                               for _ in range(draw.randint(0, 3))]})
                            for _ in range(draw.randint(0, 4))]),
            "map": maybe([(f"k{j}", maybe(j)) for j in range(draw.randint(0, 3))]),
        })
    return rows


everything = pa.schema([
    pa.field("id", pa.int64(), nullable=False),
    ("small", pa.int8()), ("big", pa.int64()), ("unsigned", pa.uint64()), ("unsigned32", pa.uint32()),
    ("real", pa.float64()), ("single", pa.float32()), ("yes", pa.bool_()), ("text", pa.string()),
    ("large", pa.large_string()), ("raw", pa.binary()), ("fixed", pa.binary(6)), ("when", pa.timestamp("us")),
    ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
    ("list", pa.list_(pa.int32())), ("nested", pa.list_(pa.list_(pa.string()))),
    ("turns", pa.list_(pa.struct([("role", pa.string()),
                                  ("content", pa.list_(pa.struct([("type", pa.string()), ("text", pa.string())])))]))),
    ("map", pa.map_(pa.string(), pa.int32())),
])


def as_read(value):
    """As the probe prints it."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime.datetime):
        return int(value.replace(tzinfo=datetime.timezone.utc).timestamp()) * 1_000_000
    if isinstance(value, dict):
        return {key: as_read(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_read(each) for each in value]
    if isinstance(value, tuple):  # an entry of a map
        return {"key": as_read(value[0]), "value": as_read(value[1])}
    return value


class Parquet(unittest.TestCase):
    maxDiff = 2000

    def read(self, path):
        done = subprocess.run([probe, path], capture_output=True, text=True)
        return done.stdout.splitlines()

    def expect_rows(self, table, **options):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/a.parquet"
            pq.write_table(table, path, **options)
            lines = self.read(path)
        expected = [as_read(row) for row in table.to_pylist()]
        self.assertEqual(len(lines), len(expected), lines[:3])
        for line, row in zip(lines, expected):
            self.assertFalse(line.startswith(("broken", "damage", "error")), line)
            self.assertEqual(json.loads(line), row, options)

    def test_every_type_however_it_is_written(self):
        table = pa.Table.from_pylist(rows_of_everything(200), everything)
        for compression in ("none", "snappy", "gzip", "zstd"):
            for version in ("1.0", "2.0"):
                for dictionary in (True, False):
                    self.expect_rows(table, compression=compression, data_page_version=version, use_dictionary=dictionary,
                                     row_group_size=draw.choice([13, 64, 1000]), data_page_size=draw.choice([64, 500, 10**6]),
                                     write_batch_size=draw.choice([1, 5, 1000]), write_page_checksum=draw.random() < 0.5,
                                     write_page_index=draw.random() < 0.5)

    def test_no_rows_and_no_nulls(self):
        self.expect_rows(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}))
        self.expect_rows(pa.table({"a": pa.array([None] * 5, pa.string())}))
        self.assertEqual([], self.read_of(pa.table({"a": pa.array([], pa.string())})))
        for compression in ("none", "snappy", "gzip", "zstd"):
            for dictionary in (True, False):
                self.expect_rows(pa.table({"a": pa.array([None] * 5, pa.string()), "b": pa.array([None] * 5, pa.int64())}),
                                 compression=compression, data_page_version="2.0", use_dictionary=dictionary)

    def read_of(self, table, **options):
        with tempfile.TemporaryDirectory() as folder:
            pq.write_table(table, f"{folder}/a.parquet", **options)
            return self.read(f"{folder}/a.parquet")

    def test_what_is_not_read_is_refused(self):
        table = pa.table({"a": ["some", "texts", "here"]})
        for compression in ("lz4", "brotli"):
            said = " ".join(self.read_of(table, compression=compression))
            self.assertRegex(said, "^error: .*LZO, Brotli or LZ4, which are not read.*write the file again")
        for options, words in (({"use_dictionary": False, "column_encoding": {"a": "DELTA_BYTE_ARRAY"}}, "encoding 7"),):
            lines = self.read_of(table, **options)
            self.assertTrue(lines and all(words in line and "write the file again" in line for line in lines
                                          if line.startswith("broken")), lines)
            self.assertFalse(any(line.startswith("{") for line in lines), lines)


if sys.argv[1] == "--fixture":
    fixture(sys.argv[2])
else:
    probe = sys.argv.pop(1)
    unittest.main(verbosity=0)
