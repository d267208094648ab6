"""`fvlm-engine bench serve` as a user runs it, and what synthetic models are stored in. Nothing here depends on how long anything takes.

usage: serve_test.py FVLM_ENGINE"""
import json
import os
import resource
import subprocess
import sys
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

engine = Path(sys.argv.pop(1)).resolve()
TINY = ["--shape", "tiny", "--prompt", 8, "--answer", 6, "--picture", 40, "--device", "cpu"]


def bench(*arguments, code=0, **environment):
    found = subprocess.run([str(word) for word in (engine, "bench", "serve", *arguments)], capture_output=True, text=True,
                           env=os.environ | environment)
    assert found.returncode == code, f"{arguments} ended with {found.returncode}\n{found.stdout}{found.stderr}"
    return found.stdout if code == 0 else found.stderr


class FalseServer:
    """A server that answers a streamed request as `answer` says, and remembers what it was asked."""
    def __init__(self, answer):
        asked = self.asked = []
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            def log_message(self, *_):
                pass
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append((self.path, self.headers.get("Authorization"), body))
                status, text = answer(len(asked))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def events(*documents):
    return "".join(f"data: {json.dumps(document)}\n\n" for document in documents) + "data: [DONE]\n\n"


GOOD = events({"choices": [{"index": 0, "delta": {"content": "yes"}}]},
              {"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 5}})


class Load(unittest.TestCase):
    def test_measures_clients_and_rates_beside_the_batch(self):
        found = json.loads(bench(*TINY, "--clients", "1,3", "--rate", "20,50%", "--requests", 9, "--json"))
        self.assertEqual([(row["clients"], row["requests"], row["errors"]) for row in found["rows"]], [(1, 9, 0), (3, 9, 0), (0, 9, 0), (0, 9, 0)])
        self.assertEqual(found["rows"][2]["rate"], 20)
        self.assertEqual({row["tokens"] for row in found["rows"]}, {9 * 6}, "no token ends an answer")
        self.assertGreaterEqual(found["cache_rows"], 3 * (8 + 6))
        for row in found["rows"]:
            for name in ("first_token_seconds", "token_seconds", "seconds_each"):
                self.assertTrue(0 < row[name]["p50"] <= row[name]["p90"] <= row[name]["p99"], row)
            self.assertLessEqual(row["first_token_seconds"]["p50"], row["seconds_each"]["p50"])
            self.assertEqual("of_offline" in row, row["clients"] > 0)
            if row["clients"] > 0:
                self.assertAlmostEqual(row["of_offline"] * row["offline_tokens_per_second"], row["tokens_per_second"], places=3)
            self.assertGreater(row["prompt_tokens"], 9 * 8, "the words, the turns around them and visual rows")

    def test_prints_a_table(self):
        printed = bench(*TINY, "--clients", 2, "--requests", 2)
        self.assertRegex(printed, r"(?m)^2 clients +2 +0 +([\d.]+ +){9}\d+ +\d+ +\d+ %$")

    def test_asks_a_server_that_runs(self):
        with FalseServer(lambda _: (200, GOOD)) as server:
            found = json.loads(bench("--url", server.url, "--clients", 2, "--requests", 4, "--images", 1, "--picture", 24, "--prompt", 3,
                                     "--json", FVLM_SERVE_TOKEN="key"))
            self.assertEqual(len(server.asked), 4 + 4, "as many to warm up")
        row = found["rows"][0]
        self.assertEqual((row["requests"], row["errors"], row["tokens"], row["prompt_tokens"]), (4, 0, 20, 120))
        self.assertNotIn("of_offline", row)
        paths, tokens, bodies = zip(*server.asked)
        self.assertEqual((set(paths), set(tokens)), ({"/v1/chat/completions"}, {"Bearer key"}))
        contents = [body["messages"][0]["content"] for body in bodies]
        self.assertEqual(len({content[0]["image_url"]["url"] for content in contents}), len(bodies), "another picture in each")
        self.assertEqual({len(content[1]["text"].split()) for content in contents}, {3})
        self.assertTrue(all(body["stream"] and body["temperature"] == 0 for body in bodies))

    def test_counts_what_is_not_answered(self):
        broken = [(500, "no"), (200, "data: {\"choices\": []}\n\n"), (200, "data: {\"error\": {\"message\": \"no\"}}\n\ndata: [DONE]\n\n")]
        with FalseServer(lambda count: broken[count % 4] if count % 4 < 3 else (200, GOOD)) as server:
            found = json.loads(bench("--url", server.url, "--clients", 1, "--requests", 8, "--images", 0, "--json"))
        self.assertEqual((found["rows"][0]["errors"], found["rows"][0]["tokens"]), (6, 10))
        self.assertIn("problem", found["rows"][0])

    def test_refuses_what_makes_no_sense(self):
        for words, options in (("expected one of MODEL, --shape and --url", []), ("expected one of", ["--shape", "tiny", "--url", "http://127.0.0.1:1"]),
                               ("is no address of a server", ["--url", "ftp://127.0.0.1"]), ("--clients: 'x' is no number", [*TINY, "--clients", "x"]),
                               ("--rate: expected more than 0", [*TINY, "--rate", "0"]), ("a share from 0 to 1", [*TINY, "--images", 2]),
                               ("mutually exclusive", ["--url", "http://127.0.0.1:1", "--mixed", 1])):
            with self.subTest(words=words):
                self.assertIn(words, bench(*options, code=2))


class Stored(unittest.TestCase):
    """The shape tiny has 0.7 million parameters."""
    def test_serves_bf16_from_a_folder_of_bf16(self):
        def limit_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        words = [str(word) for word in (engine, "bench", "serve", *TINY, "--clients", 1, "--requests", 1)]
        for dtype, code in (("bf16", 0), ("fp32", 7)):
            found = subprocess.run([*words, "--dtype", dtype], capture_output=True, text=True, preexec_fn=limit_files)
            self.assertEqual(found.returncode, code, found.stdout + found.stderr)

    def test_tokens_of_products_are_whole_numbers_above_0(self):
        for words, tokens in (("--tokens: '8x' is no number", "1,8x"), ("expected numbers above 0, got '0'", "0")):
            found = subprocess.run([str(engine), "bench", "quant", "--shape", "tiny", "--tokens", tokens], capture_output=True, text=True)
            self.assertEqual(found.returncode, 2, found.stderr)
            self.assertIn(words, found.stderr)

    def test_compares_quantized_weights_with_what_is_run(self):
        sizes = {}
        for dtype in ("fp32", "bf16"):
            words = ["--shape", "tiny", "--dtype", dtype, "--schemes", "int8", "--tokens", "1", "--repeat", "1", "--answer", "0", "--json"]
            found = subprocess.run([str(engine), "bench", "quant", *words], capture_output=True, text=True, check=True)
            sizes[dtype] = json.loads(found.stdout)["sizes"][0]
        self.assertEqual(sizes["fp32"]["model_plain_bytes"], 2 * sizes["bf16"]["model_plain_bytes"])
        self.assertEqual(sizes["fp32"]["packed_bytes"], sizes["bf16"]["packed_bytes"])

    def test_packs_the_head_in_the_scheme_that_is_named(self):
        sizes = []
        for head in ([], ["--head", "int8"], ["--head", "int4"]):
            words = ["--shape", "tiny", "--schemes", "int8,int4", "--tokens", "1", "--repeat", "1", "--answer", "2", *head, "--json"]
            found = subprocess.run([str(engine), "bench", "quant", *words], capture_output=True, text=True, check=True)
            sizes.append(json.loads(found.stdout)["sizes"])
        for none, int8, int4 in zip(*sizes):
            self.assertEqual([none["weights"] + 1] * 2, [int8["weights"], int4["weights"]])
            rows = 512  # of 128 codes and a scale of 4 bytes, or of four scales
            self.assertEqual(int8["packed_bytes"] - none["packed_bytes"], rows * (128 + 4))
            self.assertEqual(int4["packed_bytes"] - none["packed_bytes"], rows * (64 + 16))


class Mixed(unittest.TestCase):
    def test_counts_every_client_and_every_page(self):
        found = json.loads(bench(*TINY, "--mixed", 0.25, "--json"))["mixed"]
        self.assertEqual(found["problems"], [])
        self.assertEqual(set(found["requests"]), {"good requests", "vanished", "malformed", "enormous", "slow readers", "slow writers"})
        self.assertTrue(all(found["requests"].values()))
        self.assertGreater(found["pages"], 0)
        self.assertEqual(found["pages"], found["free_pages"] + found["cached_pages"])
        self.assertEqual(len(found["seconds"]), len(found["resident_bytes"]))


if __name__ == "__main__":
    unittest.main()
