"""A model that fvlm.contrastive trained, served: the cosines of /v1/embeddings are those of training's evaluation, from the run and from the exported
folder, and the vectors are transformers' last hidden states.

usage: serve_retrieval_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE MAKE_SHAPES; exit 77 where the oracle's wheels are missing."""
import io
import json
import sys
import tarfile
import unittest
from pathlib import Path

make_shapes = Path(sys.argv.pop(3)).resolve()
from picture_questions import Image, engine, folder, loaded, run, tool, torch
from running_server import Server, data_url
from transformers import AutoProcessor

RECIPE = """
local fvlm = require "fvlm"
local function found()
  return fvlm.mix { { "stills/stills/captions/*.tar", fields = { query = "caption" }, held_out = 0.1 }, chat_template = "default", system = "", max_frames = 5,
                    max_text_tokens = 64, negatives = 0 }
end
return fvlm.recipe {
  name = "finder", precision = "fp32", log_every = 1,
  model = fvlm.model { directory = "model", image_size = 32 },
  fvlm.stage "retrieval" {
    data = found(), objective = fvlm.contrastive { temperature = 0.1, dimensions = { 16 } },
    optimizer = fvlm.adamw { lr = 2e-3 }, schedule = fvlm.constant {}, samples = 96, batch = 16,
    evaluation = { fvlm.evaluation "found" { data = found(), measure = "retrieval" } },
  },
}
"""


def setUpModule():
    run(make_shapes, "--out", "stills", "--samples", "stills/captions=200")
    tool("make-smolvlm", folder / "hf", "--tokenizer", folder / "stills" / "tokenizer")
    run(engine, "import", "--model", "hf", "--out", "model")
    (folder / "finder.lua").write_text(RECIPE)
    run(engine, "train", "finder.lua", "--run-dir", "run")
    run(engine, "eval", "finder.lua", "--model", "run", "--scores", "scores.jsonl")
    run(engine, "export", "run", "--huggingface", "--out", "trained")
    run(engine, "import", "--model", "trained", "--out", "exported")


def of_picture(file):
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(file)}}]}]}


class Retrieval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scores = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
        with tarfile.open(next((folder / "stills/stills/captions").glob("*.tar"))) as tar:
            cls.captions = {score["key"]: json.load(tar.extractfile(f"{score['key']}.json"))["caption"] for score in cls.scores}
            cls.pictures = {score["key"]: tar.extractfile(f"{score['key']}.png").read() for score in cls.scores}

    def embedded(self, server, **request):
        status, body, _ = server.send("/v1/embeddings", request)
        self.assertEqual(status, 200, body)
        return torch.tensor(json.loads(body)["data"][0]["embedding"], dtype=torch.float64)

    def check(self, model):
        with Server(model=model) as server:
            for score in self.scores:
                query = self.embedded(server, input=self.captions[score["key"]])
                picture = self.embedded(server, **of_picture(self.pictures[score["key"]]))
                self.assertAlmostEqual((query @ picture).item(), score["similarity"], delta=1e-5)

    def test_the_cosines_of_a_run_are_those_that_it_was_evaluated_by(self):
        self.assertEqual(len(self.scores), 20)
        self.assertGreater(max(score["similarity"] for score in self.scores) - min(score["similarity"] for score in self.scores), 0.02)
        self.check("run")

    def test_the_cosines_of_an_exported_folder_are_the_same(self):
        self.check("exported")

    def test_the_vectors_are_the_last_hidden_states_of_transformers(self):
        model, processor = loaded("trained"), AutoProcessor.from_pretrained(folder / "trained")
        key = self.scores[0]["key"]
        picture = Image.open(io.BytesIO(self.pictures[key])).convert("RGB")
        chat = processor.apply_chat_template([{"role": "user", "content": [{"type": "image"}]}], add_generation_prompt=True)
        with Server(model="run") as server, torch.no_grad():
            for request, inputs in (({"input": self.captions[key]}, processor.tokenizer(self.captions[key], return_tensors="pt")),
                                    (of_picture(self.pictures[key]), processor(images=[picture], text=chat, return_tensors="pt"))):
                state = model.model(**inputs).last_hidden_state[0, -1].double()
                ours = self.embedded(server, **request)
                self.assertLess((ours - state / state.norm()).abs().max().item(), 1e-5)
                part = self.embedded(server, dimensions=16, **request)
                self.assertLess((part - state[:16] / state[:16].norm()).abs().max().item(), 1e-5)


if __name__ == "__main__":
    unittest.main()
