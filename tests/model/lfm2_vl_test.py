"""Folders of LFM2-VL against transformers: logits, loss and every gradient on texts with images of any size inside, generated tokens, adapters and
folders that go through the engine and back.

usage: lfm2_vl_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

from byte_tokenizer import tokenizer
from with_transformers import changed_copy, draw, engine, folder as root, run

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, Lfm2Config, Lfm2VlConfig, Siglip2VisionConfig

IMAGE = 256
TEXT = {"vocab_size": 262, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2,
        "block_multiple_of": 8, "full_attn_idxs": [1]}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "vision_use_head": False}


def config_of(text, vision, **changes):
    return Lfm2VlConfig(text_config=Lfm2Config(**TEXT | text), vision_config=Siglip2VisionConfig(**VISION | vision), image_token_id=IMAGE,
                        projector_hidden_size=56, **changes)


MODELS = {
    "usual": config_of({}, {"patch_size": 4, "num_patches": 16}),
    "changed": config_of({"conv_bias": True, "conv_L_cache": 4}, {"patch_size": 3, "num_patches": 9, "hidden_act": "gelu", "vision_use_head": True},
                         downsample_factor=3, projector_bias=False, projector_use_layernorm=False, tie_word_embeddings=False),
}
# Lines and columns of cells of each text's images. Grids of patches are larger and smaller than the one of learned positions.
PICTURES = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 9)]]


def side_of(config):
    return config.downsample_factor * config.vision_config.patch_size


def texts():
    """Text around all images, and behind the first: all texts but one begin with theirs."""
    out = []
    for place, pictures in enumerate(PICTURES):
        shown = [[257] + [IMAGE] * (rows * columns) + [258] for rows, columns in pictures]
        out.append([5, 9] * (place == 0) + sum((image + [11 + number, 3] for number, image in enumerate(shown)), []) + [7, 8, 1, 30])
    return out


def masks():
    return [torch.tensor([token < IMAGE and place % 3 != 1 and place > 0 for place, token in enumerate(text)]) for text in texts()]


def cells(side):
    """[cells, 3, side, side] of each text."""
    counts = [sum(rows * columns for rows, columns in pictures) for pictures in PICTURES]
    return torch.randn(sum(counts), 3, side, side, generator=torch.Generator().manual_seed(6)).split(counts)


def batch_for(config):
    path = root / "batch.safetensors"
    own = cells(side_of(config))
    save_file({"frames": torch.cat(own), "frame_counts": torch.tensor([len(one) for one in own]),
               "image_grids": torch.tensor([grid for pictures in PICTURES for grid in pictures]),
               "image_counts": torch.tensor([len(pictures) for pictures in PICTURES]),
               "input_ids": torch.tensor([-1 if token == IMAGE else token for text in texts() for token in text]),
               "loss_mask": torch.cat(masks()).to(torch.uint8), "text_lengths": torch.tensor([len(text) for text in texts()])}, path)
    return path


def inputs(config):
    """What transformers' model gets of each text: lines of patches, padded to one number of them."""
    side, patch = side_of(config), config.vision_config.patch_size
    for text, pictures, own in zip(texts(), PICTURES, cells(side)):
        given = {"input_ids": torch.tensor([text])}
        if pictures:
            patches = []
            for part, (rows, columns) in zip(own.split([rows * columns for rows, columns in pictures]), pictures):
                image = part.unflatten(0, (rows, columns)).permute(2, 0, 3, 1, 4).reshape(3, rows * side, columns * side)
                lines = image.unflatten(2, (-1, patch)).unflatten(1, (-1, patch)).permute(1, 3, 2, 4, 0)
                patches.append(lines.reshape(-1, 3 * patch * patch))
            most = max(map(len, patches))
            given["pixel_values"] = torch.stack([F.pad(one, (0, 0, 0, most - len(one))) for one in patches])
            given["pixel_attention_mask"] = torch.stack([(torch.arange(most) < len(one)).int() for one in patches])
            given["spatial_shapes"] = torch.tensor(pictures) * config.downsample_factor
        yield given


def part_name(name):
    for theirs, ours in (("model.vision_tower.", "vision."), ("model.multi_modal_projector.", ""), ("model.language_model.", "decoder.model."),
                         ("lm_head.", "decoder.lm_head.")):
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    raise AssertionError(name)


def make(name):
    torch.manual_seed(1)
    config = MODELS[name]
    model = AutoModelForImageTextToText.from_config(config).eval()
    draw(model)
    model.save_pretrained(root / name)
    (root / name / "tokenizer.json").write_text(tokenizer(further=["<|image_start|>", "<|image_end|>"]))
    (root / name / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "Lfm2VlImageProcessorFast", "encoder_patch_size": config.vision_config.patch_size,
         "downsample_factor": config.downsample_factor, "tile_size": 4 * side_of(config)}))
    run(engine, "import", "--model", root / name, "--out", root / f"{name}.model")
    return model


def setUpModule():
    global models
    models = {name: make(name) for name in MODELS}


class Lfm2Vl(unittest.TestCase):
    def test_logits_loss_and_every_gradient(self):
        for name, model in models.items():
            with self.subTest(name):
                run(engine, "trace", root / f"{name}.model", "--batch", batch_for(model.config), "--grads", "--out", root / "trace.safetensors")
                ours = load_file(root / "trace.safetensors")
                model.zero_grad()
                logits = [model(**given).logits[0] for given in inputs(model.config)]
                loss = torch.cat([F.cross_entropy(row[:-1], torch.tensor(text)[1:], reduction="none")[mask[1:]]
                                  for row, text, mask in zip(logits, texts(), masks())]).mean()
                loss.backward()
                expected = {"grad." + part_name(key): p.grad for key, p in model.named_parameters() if p.grad is not None}
                floor = 0.01 * max(gradient.abs().max().item() for gradient in expected.values())
                expected |= {"loss": loss.detach(), "logits": torch.cat([row[[token != IMAGE for token in text]]
                                                                         for row, text in zip(logits, texts())]).detach()}
                self.assertEqual({key for key in ours if key.startswith("grad.")}, {key for key in expected if key.startswith("grad.")})
                for key, right in expected.items():
                    scale = max(right.abs().max().item(), floor if key.startswith("grad.") else 0.0)
                    off = (ours[key].reshape(right.shape) - right).abs().max().item() / scale
                    self.assertLessEqual(off, 1e-5, f"{name}: {key}")

    def test_generates_the_same_tokens(self):
        for name, model in models.items():
            with self.subTest(name):
                answers = json.loads(run(engine, "generate", root / f"{name}.model", "--batch", batch_for(model.config), "--limit", "24",
                                         "--ignore-eos", "--json"))
                for given, sample in zip(inputs(model.config), answers["samples"], strict=True):
                    ids = given["input_ids"]
                    rows = model.generate(**given, attention_mask=torch.ones_like(ids), max_new_tokens=24, min_new_tokens=24,
                                          do_sample=False, eos_token_id=1000, pad_token_id=0)
                    self.assertEqual(sample["ids"], rows[0, ids.shape[1]:].tolist())

    def test_folders_come_back_with_equal_bytes(self):
        for name, model in models.items():
            with self.subTest(name):
                back = root / f"{name}.back"
                run(engine, "export", root / f"{name}.model", "--huggingface", "--out", back)
                before, after = (load_file(one / "model.safetensors") for one in (root / name, back))
                self.assertEqual(set(before), set(after))
                self.assertTrue(all(torch.equal(after[key].view(torch.uint8), tensor.view(torch.uint8)) for key, tensor in before.items()))
                for file in ("preprocessor_config.json", "tokenizer.json"):
                    self.assertEqual((root / name / file).read_bytes(), (back / file).read_bytes())
                self.assertEqual(*(json.loads((one / "config.json").read_text()) for one in (root / name, back)))
                again = AutoModelForImageTextToText.from_pretrained(back).eval()
                for given in inputs(model.config):
                    self.assertTrue(torch.equal(again(**given).logits, model(**given).logits))

    def test_words_of_published_folders(self):
        """The text model's keys of the first files, and a key for tied embeddings of another name."""
        def as_published(config):
            config["tie_embedding"] = config.pop("tie_word_embeddings")
            text = config["text_config"]
            text |= {"full_attn_idxs": [1], "tie_embedding": True, "block_ff_dim": text["intermediate_size"], "theta": 1e6}
            del text["layer_types"]
        run(engine, "import", "--model", changed_copy(root / "usual", as_published), "--out", root / "published.model")
        said = {run(engine, "trace", root / f"{one}.model", "--batch", batch_for(models["usual"].config), "--out", root / "trace.safetensors")
                for one in ("usual", "published")}
        self.assertEqual(len(said), 1)

    def test_folders_that_do_not_fit_are_refused(self):
        def edit(*keys):
            def change(value):
                def apply(config):
                    for key in keys[:-1]:
                        config = config[key]
                    config[keys[-1]] = value
                return apply
            return change
        projector = "model.multi_modal_projector.linear_1.weight"
        for config, tensors, *words in (
                (None, lambda tensors: tensors.pop(projector), f'tensor "{projector}" is missing'),
                (None, lambda tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
                (edit("downsample_factor")(3), None, "multi_modal_projector", "[288]"),
                (edit("projector_hidden_size")(8), None, f'tensor "{projector}" has the shape [56, 128]', "[8, 128]"),
                (edit("projector_hidden_act")("relu"), None, "'projector_hidden_act' = \"relu\""),
                (edit("vision_config", "num_patches")(15), None, "'num_patches' = 15", "a square number is"),
                (edit("vision_config", "patch_size")(5), None, 'patch_embedding.weight" has the shape [32, 48]', "[32, 75]"),
                (edit("text_config", "layer_types")(["conv"]), None, "text_config", "there are 3 layers")):
            with self.subTest(words[0]):
                said = run(engine, "import", "--model", changed_copy(root / "usual", config, tensors), "--out", root / "refused", code=4)
                for word in words:
                    self.assertIn(word, said)
                self.assertFalse((root / "refused").exists())


if __name__ == "__main__":
    unittest.main()
