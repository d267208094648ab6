"""Folders of Mistral Small 3.1, Ministral 3, Pixtral and LightOnOCR against transformers: logits, loss and every gradient on texts with images of any
size inside, generated tokens, and folders that go through the engine and back.

usage: mistral3_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import shutil
import unittest

from byte_tokenizer import tokenizer
from with_transformers import draw, engine, folder as root, run

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForImageTextToText, LightOnOcrConfig, LlavaConfig, Ministral3Config, Mistral3Config, MistralConfig,
                          PixtralVisionConfig, Qwen3Config)

IMAGE, LINE_END, END = 256, 257, 258
TEXT = {"vocab_size": 262, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_act": "silu", "image_size": 64}
# Queries are scaled from the 16th position on.
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1}


def mistral3(text, patch, **changes):
    return Mistral3Config(vision_config=PixtralVisionConfig(**VISION, patch_size=patch), text_config=text, image_token_index=IMAGE, **changes)


MODELS = {
    "mistral3": mistral3(MistralConfig(**TEXT, sliding_window=None, rms_norm_eps=1e-3), 4, tie_word_embeddings=False),
    "ministral3": mistral3(Ministral3Config(**TEXT, rope_parameters=dict(YARN)), 7, tie_word_embeddings=True),
    "with_biases": mistral3(Ministral3Config(**TEXT, rope_parameters=dict(YARN)), 2, tie_word_embeddings=False, spatial_merge_size=3,
                            multimodal_projector_bias=True),
    "pixtral": LlavaConfig(vision_config=PixtralVisionConfig(**VISION, patch_size=8), text_config=MistralConfig(**TEXT, sliding_window=None),
                           image_token_index=IMAGE, vision_feature_layer=-1, vision_feature_select_strategy="full"),
    "lighton_ocr": LightOnOcrConfig(vision_config=PixtralVisionConfig(**VISION, patch_size=7), text_config=Qwen3Config(**TEXT, rms_norm_eps=1e-3),
                                    image_token_id=IMAGE, tie_word_embeddings=True),
}
# Lines and columns of cells of each text's images. One of a single cell needs another beside it in transformers.
PICTURES = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 2)]]


def merge_of(config):
    return getattr(config, "spatial_merge_size", 1)


def side_of(config):
    return merge_of(config) * config.vision_config.patch_size


def texts():
    """Text around all images, and behind the first: all texts but one begin with theirs."""
    out = []
    for place, pictures in enumerate(PICTURES):
        shown = [([IMAGE] * columns + [LINE_END]) * (rows - 1) + [IMAGE] * columns + [END] for rows, columns in pictures]
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
    """What transformers' model gets of each text: images that are padded to one size."""
    side = side_of(config)
    for text, pictures, own in zip(texts(), PICTURES, cells(side)):
        given = {"input_ids": torch.tensor([text])}
        if pictures:
            sizes = [(rows * side, columns * side) for rows, columns in pictures]
            most = [max(size[axis] for size in sizes) for axis in (0, 1)]
            images = [part.unflatten(0, grid).permute(2, 0, 3, 1, 4).reshape(3, *size)
                      for part, grid, size in zip(own.split([rows * columns for rows, columns in pictures]), pictures, sizes)]
            given["pixel_values"] = torch.stack([F.pad(image, (0, most[1] - image.shape[2], 0, most[0] - image.shape[1])) for image in images])
            given["image_sizes"] = torch.tensor(sizes)
        yield given


def part_name(name):
    for theirs, ours in (("model.vision_tower.", "vision."), ("model.multi_modal_projector.", ""), ("model.vision_encoder.", "vision."),
                         ("model.vision_projection.", ""), ("model.language_model.", "decoder.model."), ("lm_head.", "decoder.lm_head.")):
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    raise AssertionError(name)


def make(name):
    torch.manual_seed(1)
    config = MODELS[name]
    model = AutoModelForImageTextToText.from_config(config).eval()
    draw(model)
    model.save_pretrained(root / name)
    (root / name / "tokenizer.json").write_text(tokenizer(further=["[IMG_BREAK]", "[IMG_END]"]))
    (root / name / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "PixtralImageProcessor", "patch_size": config.vision_config.patch_size, "size": {"longest_edge": 64}}))
    (root / name / "processor_config.json").write_text(json.dumps(
        {"processor_class": f"{'LightOnOcr' if name == 'lighton_ocr' else 'Pixtral'}Processor", "patch_size": config.vision_config.patch_size, "spatial_merge_size": merge_of(config)}))
    run(engine, "import", "--model", root / name, "--out", root / f"{name}.model")
    return model


def setUpModule():
    global models
    models = {name: make(name) for name in MODELS}


class Mistral3(unittest.TestCase):
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
                for file in ("preprocessor_config.json", "processor_config.json", "tokenizer.json"):
                    self.assertEqual((root / name / file).read_bytes(), (back / file).read_bytes())
                self.assertEqual(*(json.loads((one / "config.json").read_text()) for one in (root / name, back)))
                again = AutoModelForImageTextToText.from_pretrained(back).eval()
                for given in inputs(model.config):
                    self.assertTrue(torch.equal(again(**given).logits, model(**given).logits))

    def changed(self, name, target, change):
        shutil.copytree(root / name, root / target)
        config, tensors = json.loads((root / name / "config.json").read_text()), load_file(root / name / "model.safetensors")
        change(config, tensors)
        (root / target / "config.json").write_text(json.dumps(config))
        save_file(tensors, root / target / "model.safetensors", metadata={"format": "pt"})
        return root / target

    def test_the_file_decides_whether_the_head_is_the_embedding(self):
        """Where config.json does not say it, as in published folders, which have another word for axial positions, too."""
        def as_published(config, _):
            del config["tie_word_embeddings"]
            config["vision_config"]["rope_parameters"]["rope_type"] = "default"
        for name, model in models.items():
            if name == "pixtral":
                continue
            with self.subTest(name):
                silent = self.changed(name, f"{name}.silent", as_published)
                run(engine, "import", "--model", silent, "--out", root / f"{name}.silent.model")
                said = {run(engine, "trace", root / f"{one}.model", "--batch", batch_for(model.config), "--out", root / "trace.safetensors")
                        for one in (name, f"{name}.silent")}
                self.assertEqual(len(said), 1)

    def test_the_names_of_transformers_4(self):
        def rename(config, tensors):
            config["vision_config"]["rope_theta"] = config["vision_config"].pop("rope_parameters")["rope_theta"]
            for key in list(tensors):
                newer = key.removeprefix("language_model.") if "lm_head" in key else "model." + key.replace("language_model.model.", "language_model.")
                tensors[newer] = tensors.pop(key)
        for name in ("mistral3", "pixtral"):
            with self.subTest(name):
                run(engine, "import", "--model", self.changed(name, f"{name}.4", rename), "--out", root / f"{name}.4.model")
                for part in ("vision/model", "connector", "decoder/model"):
                    files = [root / f"{one}.model" / f"{part}.safetensors" for one in (name, f"{name}.4")]
                    self.assertEqual(files[0].read_bytes(), files[1].read_bytes(), part)

    def test_a_lighton_ocr_may_call_itself_a_mistral3(self):
        """As published folders do, whose decoder has a key for norms that every Qwen3 has."""
        def as_published(config, _):
            config |= {"model_type": "mistral3", "architectures": ["LightOnOCRForConditionalGeneration"], "projector_hidden_act": "gelu",
                       "multimodal_projector_bias": False, "vision_feature_layer": -1}
            config["text_config"]["use_qk_norm"] = True
        written = self.changed("lighton_ocr", "lighton_ocr.published", as_published) / "processor_config.json"
        written.write_text(written.read_text().replace("LightOnOcr", "LightOnOCR"))
        run(engine, "import", "--model", root / "lighton_ocr.published", "--out", root / "lighton_ocr.published.model")
        said = {run(engine, "trace", root / f"{one}.model", "--batch", batch_for(models["lighton_ocr"].config), "--out", root / "trace.safetensors")
                for one in ("lighton_ocr", "lighton_ocr.published")}
        self.assertEqual(len(said), 1)

    def test_a_template_in_the_processors_config_is_the_decoders(self):
        """As older folders have it, whose other files say nothing of chats."""
        written = self.changed("mistral3", "with_template", lambda *_: None) / "processor_config.json"
        chat = "{% for message in messages %}{{ message.content }}!{% endfor %}"
        written.write_text(json.dumps(json.loads(written.read_text()) | {"chat_template": chat}))
        run(engine, "import", "--model", root / "with_template", "--out", root / "with_template.model")
        answer = json.loads(run(engine, "generate", root / "with_template.model", "--prompt", "Hello", "--max-tokens", "2", "--json"))
        self.assertEqual(answer["prompt"], len("Hello!"))
        run(engine, "export", root / "with_template.model", "--huggingface", "--out", root / "with_template.back")
        self.assertEqual((root / "with_template.back" / "processor_config.json").read_bytes(), written.read_bytes())

    def test_folders_that_do_not_fit_are_refused(self):
        def edit(*keys):
            def change(value):
                def apply(config, _):
                    for key in keys[:-1]:
                        config = config[key]
                    config[keys[-1]] = value
                return apply
            return change
        projector = "multi_modal_projector.patch_merger.merging_layer.weight"
        beta = {key: value for key, value in YARN.items() if key != "llama_4_scaling_beta"}
        for number, (name, change, *words) in enumerate((
                ("mistral3", lambda _, tensors: tensors.pop(projector), f'tensor "{projector}" is missing'),
                ("mistral3", lambda _, tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
                ("mistral3", edit("spatial_merge_size")(3), f'tensor "{projector}" has the shape [32, 128]', "[32, 288]"),
                ("mistral3", edit("vision_config", "patch_size")(5), 'patch_conv.weight" has the shape [32, 3, 4, 4]', "[32, 3, 5, 5]"),
                ("mistral3", edit("vision_config", "hidden_act")("gelu"), "vision_config", "'hidden_act' = \"gelu\"", "only silu is"),
                ("mistral3", edit("vision_config", "num_attention_heads")(16), "16 heads of a width of 32"),
                ("mistral3", edit("vision_config", "rope_parameters")({"rope_type": "axial", "rope_theta": 500.0}), "'rope_parameters'",
                 "theta of 10000"),
                ("mistral3", edit("vision_feature_layer")(-2), "'vision_feature_layer' = -2", "-1 is"),
                ("mistral3", edit("projector_hidden_act")("relu"), "'projector_hidden_act' = \"relu\""),
                ("mistral3", edit("quantization_config")({"quant_method": "mxfp4"}), "'quant_method' = \"mxfp4\""),
                ("ministral3", edit("text_config", "rope_parameters")(beta), "text_config", "'llama_4_scaling_beta' is missing"),
                ("lighton_ocr", lambda _, tensors: tensors.pop("model.vision_projection.norm.weight"),
                 'tensor "model.vision_projection.norm.weight" is missing'),
                ("lighton_ocr", edit("text_config", "model_type")("qwen3_moe"), "text_config", '"qwen3_moe" is not supported as decoder'),
                ("pixtral", edit("vision_feature_select_strategy")("default"), "'vision_feature_select_strategy' = \"default\"", "only full is"))):
            with self.subTest(words[0]):
                wrong = self.changed(name, f"wrong-{number}", change)
                said = run(engine, "import", "--model", wrong, "--out", root / "refused", code=4)
                for word in words:
                    self.assertIn(word, said)
                self.assertFalse((root / "refused").exists())


if __name__ == "__main__":
    unittest.main()
