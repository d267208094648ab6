"""What the tests of whole folders share whose model reads images of any size in cells: texts with such images inside, the same batch for the
engine and for transformers, and what each such model has to do."""
import json

from byte_tokenizer import tokenizer
from with_transformers import assert_near, changed_copy, draw, engine, folder as root, run, with_float64

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

IMAGE = 256  # the placeholder of a cell; tokens behind it stand around cells


class CellFolders:
    """Mixed into a TestCase."""
    configs = {}  # by name
    pictures = []  # lines and columns of cells of each text's images
    names = []  # how names of tensors begin in transformers, and here
    further = []  # tokens behind IMAGE
    files = ["preprocessor_config.json", "tokenizer.json"]

    has_token_types = False  # whether transformers' model wants to be told which tokens are those of images

    def side(self, config):
        """Of a cell, in pixels."""
        return config.vision_config.spatial_merge_size * config.vision_config.patch_size

    def shown(self, lines, columns):
        """Tokens of an image."""
        return [IMAGE + 1] + [IMAGE] * (lines * columns) + [IMAGE + 2]

    def placeholders(self, grids):
        """The visual rows that the images' tokens are of, if they are not all in order."""
        return ()

    def given_images(self, config, images, grids):
        """What transformers' model gets of a text's images, [3, height, width] each."""
        raise NotImplementedError

    def write_processor(self, folder, name, config):
        raise NotImplementedError

    @classmethod
    def setUpClass(cls):
        cls.models = {name: cls().make(name, config) for name, config in cls.configs.items()}

    def adjust(self, model):
        """What a model of this kind needs beside drawn parameters."""

    def make(self, name, config):
        torch.manual_seed(1)
        model = AutoModelForImageTextToText.from_config(config).eval()
        draw(model)
        self.adjust(model)
        model.save_pretrained(root / name)
        (root / name / "tokenizer.json").write_text(tokenizer(further=self.further))
        self.write_processor(root / name, name, config)
        run(engine, "import", "--model", root / name, "--out", root / f"{name}.model")
        return model

    def texts(self):
        """Text around all images, and behind the first: all texts but one begin with theirs."""
        out = []
        for place, pictures in enumerate(self.pictures):
            shown = [self.shown(*grid) for grid in pictures]
            out.append([5, 9] * (place == 0) + sum((image + [11 + number, 3] for number, image in enumerate(shown)), []) + [7, 8, 1, 30])
        return out

    def masks(self):
        return [torch.tensor([token < IMAGE and place % 3 != 1 and place > 0 for place, token in enumerate(text)]) for text in self.texts()]

    def cells(self, config):
        """[cells, 3, side, side] of each text."""
        counts, side = [sum(lines * columns for lines, columns in pictures) for pictures in self.pictures], self.side(config)
        return torch.randn(sum(counts), 3, side, side, generator=torch.Generator().manual_seed(6)).split(counts)

    def batch_for(self, config):
        path = root / "batch.safetensors"
        own = self.cells(config)
        save_file({"frames": torch.cat(own), "frame_counts": torch.tensor([len(one) for one in own]),
                   "image_grids": torch.tensor([grid for pictures in self.pictures for grid in pictures]),
                   "image_counts": torch.tensor([len(pictures) for pictures in self.pictures]),
                   "input_ids": torch.tensor([token for text, grids in zip(self.texts(), self.pictures) for token in self.with_placeholders(text, grids)]),
                   "loss_mask": torch.cat(self.masks()).to(torch.uint8), "text_lengths": torch.tensor([len(text) for text in self.texts()])}, path)
        return path

    def with_placeholders(self, text, grids):
        rows = iter([-16 - row for row in self.placeholders(grids)] or [-1] * text.count(IMAGE))
        return [next(rows) if token == IMAGE else token for token in text]

    def inputs(self, config):
        """What transformers' model gets of each text."""
        for text, grids, own in zip(self.texts(), self.pictures, self.cells(config)):
            given = {"input_ids": torch.tensor([text])}
            if grids:
                parts = own.split([lines * columns for lines, columns in grids])
                images = [part.unflatten(0, grid).permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2) for part, grid in zip(parts, grids)]
                given |= self.given_images(config, images, grids)
            if self.has_token_types:
                given["mm_token_type_ids"] = (given["input_ids"] == IMAGE).int()
            yield given

    def own_name(self, name):
        for theirs, ours in self.names:
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        raise AssertionError(name)

    def says_the_same(self, names, config):
        """Whether models of these names make the same of the batch."""
        return len({run(engine, "trace", root / f"{one}.model", "--batch", self.batch_for(config), "--out", root / "trace.safetensors")
                    for one in names}) == 1

    def refused(self, *cases, of="usual"):
        """Changes of a folder's config and tensors, and words of what an import then says."""
        for config, tensors, *words in cases:
            with self.subTest(words[-1]):
                said = run(engine, "import", "--model", changed_copy(root / of, config, tensors), "--out", root / "refused", code=4)
                for word in words:
                    self.assertIn(word, said)
                self.assertFalse((root / "refused").exists())

    def expected_of(self, model):
        """Loss, logits and every gradient, by our names, that transformers computes of the batch in the model's type of numbers."""
        model.zero_grad()
        texts = self.texts()
        logits = [model(**{key: value.to(model.dtype) if value.is_floating_point() else value for key, value in given.items()}).logits[0]
                  for given in self.inputs(model.config)]
        loss = torch.cat([F.cross_entropy(row[:-1], torch.tensor(text)[1:], reduction="none")[mask[1:]]
                          for row, text, mask in zip(logits, texts, self.masks())]).mean()
        loss.backward()
        return {"grad." + self.own_name(key): p.grad for key, p in model.named_parameters() if p.grad is not None} | {
            "loss": loss.detach(),
            "logits": torch.cat([row[[token != IMAGE for token in text]] for row, text in zip(logits, texts)]).detach()}

    def test_logits_loss_and_every_gradient(self):
        for name, model in self.models.items():
            with self.subTest(name):
                run(engine, "trace", root / f"{name}.model", "--batch", self.batch_for(model.config), "--grads", "--out", root / "trace.safetensors")
                ours = load_file(root / "trace.safetensors")
                expected, exact = with_float64(self.expected_of, model)
                self.assertEqual({key for key in ours if key.startswith("grad.")}, {key for key in expected if key.startswith("grad.")})
                assert_near(ours, expected, exact, name)

    def test_generates_the_same_tokens(self):
        for name, model in self.models.items():
            with self.subTest(name):
                answers = json.loads(run(engine, "generate", root / f"{name}.model", "--batch", self.batch_for(model.config), "--limit", "24",
                                         "--ignore-eos", "--json"))
                for given, sample in zip(self.inputs(model.config), answers["samples"], strict=True):
                    ids = given["input_ids"]
                    rows = model.generate(**given, attention_mask=torch.ones_like(ids), max_new_tokens=24, min_new_tokens=24,
                                          do_sample=False, eos_token_id=1000, pad_token_id=0)
                    self.assertEqual(sample["ids"], rows[0, ids.shape[1]:].tolist())

    def test_folders_come_back_with_equal_bytes(self):
        for name, model in self.models.items():
            with self.subTest(name):
                back = root / f"{name}.back"
                run(engine, "export", root / f"{name}.model", "--huggingface", "--out", back)
                before, after = (load_file(one / "model.safetensors") for one in (root / name, back))
                self.assertEqual(set(before), set(after))
                self.assertTrue(all(torch.equal(after[key].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)) for key, tensor in before.items()))
                for file in self.files:
                    self.assertEqual((root / name / file).read_bytes(), (back / file).read_bytes())
                self.assertEqual(*(json.loads((one / "config.json").read_text()) for one in (root / name, back)))
                # Both read from files: on some CPUs sums depend on where weights lie in memory.
                source, again = (AutoModelForImageTextToText.from_pretrained(one).eval() for one in (root / name, back))
                for given in self.inputs(model.config):
                    self.assertTrue(torch.equal(again(**given).logits, source(**given).logits))


def edit(*keys):
    """edit("a", "b")(value) changes config["a"]["b"]."""
    def change(value):
        def apply(config, *_):
            for key in keys[:-1]:
                config = config[key]
            config[keys[-1]] = value
        return apply
    return change
