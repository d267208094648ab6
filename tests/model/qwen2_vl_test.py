"""Folders of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, both also with experts, and LFM3-VL against transformers: logits, loss and every gradient on texts with images and videos of any
size inside, generated tokens, and folders that go through the engine and back.

usage: qwen2_vl_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import itertools
import json
import shutil
import unittest

from byte_tokenizer import tokenizer
from cell_folders import edit
from with_transformers import assert_near, changed_copy, draw, engine, folder as root, run, with_experts_apart, with_float64

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForImageTextToText, Lfm3VlConfig, Lfm3VlForConditionalGeneration, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLConfig, Qwen2VLForConditionalGeneration,
                          Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration, Qwen3VLConfig,
                          Qwen3VLForConditionalGeneration, Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration)

IMAGE, VIDEO = 256, 257
TEXT = {"vocab_size": 260, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 3, 2]}}
TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": 258, "vision_end_token_id": 259}
OF_QWEN3 = TEXT | {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2],
                                                       "mrope_interleaved": True}}
OF_QWEN3_5 = TEXT | {"num_hidden_layers": 4, "head_dim": 32, "rms_norm_eps": 0.1, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                     "linear_key_head_dim": 12, "linear_value_head_dim": 8,
                     "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                     "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
                                         "partial_rotary_factor": 0.25}}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
OF_LFM3 = {key: value for key, value in TEXT.items() if key != "rope_parameters"} | {
    "model_type": "lfm3", "num_hidden_layers": 3, "head_dim": 16, "sliding_window": 8, "layer_types": ["conv", "sliding_attention", "full_attention"],
    "rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e2}}}
OF_LFM3_VISION = {"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 2, "num_key_value_heads": 1}
VISION = {"depth": 3, "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 40, "num_heads": 2, "num_position_embeddings": 25}
MODELS = {
    "qwen2_vl": (Qwen2VLForConditionalGeneration, Qwen2VLConfig(
        text_config=dict(TEXT), **TOKENS, vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2, "num_heads": 2})),
    "qwen2_5_vl": (Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig(
        text_config=dict(TEXT), **TOKENS, tie_word_embeddings=True,
        vision_config={"depth": 2, "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 40, "num_heads": 2,
                       "fullatt_block_indexes": [1], "window_size": 56})),
    "of_small_patches": (Qwen2VLForConditionalGeneration, Qwen2VLConfig(
        text_config=dict(TEXT), **TOKENS, vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2, "num_heads": 2,
                                                         "patch_size": 7, "spatial_merge_size": 4})),
    "qwen3_vl": (Qwen3VLForConditionalGeneration, Qwen3VLConfig(
        text_config=dict(OF_QWEN3), **TOKENS, vision_config=VISION | {"deepstack_visual_indexes": [0, 2]})),
    "without_deepstack": (Qwen3VLForConditionalGeneration, Qwen3VLConfig(
        text_config=dict(OF_QWEN3), **TOKENS, tie_word_embeddings=True,
        vision_config=VISION | {"patch_size": 8, "spatial_merge_size": 4, "deepstack_visual_indexes": []})),
    "qwen3_5": (Qwen3_5ForConditionalGeneration, Qwen3_5Config(text_config=dict(OF_QWEN3_5), **TOKENS, vision_config=dict(VISION))),
    "qwen3_5_tied": (Qwen3_5ForConditionalGeneration, Qwen3_5Config(
        text_config=OF_QWEN3_5 | {"num_hidden_layers": 2, "layer_types": None, "full_attention_interval": 2}, **TOKENS,
        tie_word_embeddings=True, vision_config=VISION | {"patch_size": 8})),
    "qwen3_vl_moe": (Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeConfig(
        text_config=OF_QWEN3 | EXPERTS, **TOKENS, vision_config=VISION | {"deepstack_visual_indexes": [0, 2]}, experts_implementation="eager")),
    "qwen3_vl_moe_tied": (Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeConfig(
        text_config=OF_QWEN3 | EXPERTS | {"mlp_only_layers": [0]}, **TOKENS, tie_word_embeddings=True,
        vision_config=VISION | {"deepstack_visual_indexes": [1]}, experts_implementation="eager")),
    "qwen3_5_moe": (Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeConfig(
        text_config=OF_QWEN3_5 | EXPERTS | {"shared_expert_intermediate_size": 24}, **TOKENS, vision_config=dict(VISION),
        experts_implementation="eager")),
    "lfm3_vl": (Lfm3VlForConditionalGeneration, Lfm3VlConfig(
        text_config=dict(OF_LFM3), **TOKENS, projector_hidden_size=40, vision_config=dict(OF_LFM3_VISION))),
    "lfm3_vl_wide": (Lfm3VlForConditionalGeneration, Lfm3VlConfig(
        text_config=OF_LFM3 | {"use_sandwich_norm": False, "use_attention_gate": False, "conv_L_cache": 3}, **TOKENS, projector_bias=False,
        tie_word_embeddings=False, projector_hidden_size=24,
        vision_config=OF_LFM3_VISION | {"patch_size": 8, "spatial_merge_size": 3, "num_key_value_heads": 2, "conv_kernel_size": 5, "norm_eps": 1e-2,
                                        "layer_types": ["full_attention", "conv", "full_attention", "conv"]})),
}
IMAGES = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
          "min_pixels": 3136, "max_pixels": 12845056}
# Lines and columns of cells, and steps of time, 0 for an image, of each text's images and videos.
PICTURES = {
    "images": [[(2, 3, 0), (5, 2, 0)], [(3, 4, 0)], []],
    "videos": [[(2, 2, 4)], [(2, 3, 0), (3, 1, 2), (1, 2, 5)], [], [(3, 3, 1), (2, 1, 0)]],
}
SECONDS = 0.6  # of a step of time


def labels_steps(model):
    """Whether the text says of each step of a video when it is, so that all steps are as images."""
    return model.config.model_type in ("qwen3_vl", "qwen3_5", "qwen3_vl_moe", "qwen3_5_moe", "lfm3_vl")


def has_row_axes(model):
    return model.config.model_type != "lfm3_vl"


def shown(model, rows, columns, steps):
    if steps == 0:
        return [258] + [IMAGE] * rows * columns + [259]
    if not labels_steps(model):
        return [258] + [VIDEO] * rows * columns * steps + [259]
    return [258] + sum(([60 + step, 61, 258] + [VIDEO] * rows * columns + [259] for step in range(steps)), []) + [259]


def texts(model, batch):
    """Text around all images and videos, and behind the first: the last texts begin with one."""
    out = []
    for place, pictures in enumerate(PICTURES[batch]):
        pieces = [shown(model, *picture) for picture in pictures]
        out.append([5, 9] * (place == 0) + sum((piece + [11 + number, 3] for number, piece in enumerate(pieces)), []) + [7, 8, 1, 30])
    return out


def masks(model, batch):
    return [torch.tensor([token < IMAGE and place % 3 != 1 and place > 0 for place, token in enumerate(text)]) for text in texts(model, batch)]


def squares(pictures):
    return sum(rows * columns * max(1, 2 * steps) for rows, columns, steps in pictures)


def cells(side, batch):
    """[squares, 3, side, side] of each text. Those of a step's first moment come before those of its second."""
    counts = [squares(pictures) for pictures in PICTURES[batch]]
    return torch.randn(sum(counts), 3, side, side, generator=torch.Generator().manual_seed(6)).split(counts)


def side_of(model):
    return model.config.vision_config.patch_size * model.config.vision_config.spatial_merge_size


def batch_for(model, batch="images"):
    grids = [(rows, columns, steps) for pictures in PICTURES[batch] for rows, columns, steps in pictures]
    counts = [len(pictures) for pictures in PICTURES[batch]]
    if labels_steps(model):
        counts = [sum(max(1, steps) for _, _, steps in pictures) for pictures in PICTURES[batch]]
        grids = [(rows, columns, min(1, steps)) for rows, columns, steps in grids for _ in range(max(1, steps))]
    kinds = {"image_grids": torch.tensor([grid[:2] for grid in grids])}
    if batch == "videos":
        kinds = {"image_grids": torch.tensor([(rows, columns, max(1, steps), min(2, steps + 1)) for rows, columns, steps in grids]),
                 "step_seconds": torch.full([len(grids)], SECONDS)}
    own = texts(model, batch)
    path = root / "batch.safetensors"
    save_file(kinds | {"frames": torch.cat(cells(side_of(model), batch)), "image_counts": torch.tensor(counts),
                       "frame_counts": torch.tensor([squares(pictures) for pictures in PICTURES[batch]]),
                       "input_ids": torch.tensor([-1 if token in (IMAGE, VIDEO) else token for text in own for token in text]),
                       "loss_mask": torch.cat(masks(model, batch)).to(torch.uint8),
                       "text_lengths": torch.tensor([len(text) for text in own])}, path)
    return path


def inputs(model, batch):
    """What transformers' model gets of each text: patches of both moments of a cell, which are equal in an image, line by line."""
    merge, patch = model.config.vision_config.spatial_merge_size, model.config.vision_config.patch_size
    for text, pictures, own in zip(texts(model, batch), PICTURES[batch], cells(side_of(model), batch)):
        types = [{IMAGE: 1, VIDEO: 2}.get(token, 0) for token in text]
        given = {"input_ids": torch.tensor([text])} | ({"mm_token_type_ids": torch.tensor([types])} if has_row_axes(model) else {})
        rows_of = {"image": [], "video": []}
        for (rows, columns, steps), of_picture in zip(pictures, own.split([squares([picture]) for picture in pictures])):
            moments = of_picture.reshape(max(1, steps), -1, rows * columns, 3, side_of(model), side_of(model)).transpose(1, 2)
            patches = moments.expand(-1, -1, 2, -1, -1, -1).reshape(-1, 2, 3, merge, patch, merge, patch)
            rows_of["video" if steps else "image"].append(patches.permute(0, 3, 5, 2, 1, 4, 6).reshape(-1, 3 * 2 * patch * patch))
        for kind, values in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            if rows_of[kind]:
                given[values] = torch.cat(rows_of[kind])
                given[f"{kind}_grid_thw"] = torch.tensor([[max(1, steps), merge * rows, merge * columns] for rows, columns, steps in pictures
                                                          if (steps > 0) == (kind == "video")])
        if model.config.model_type == "qwen2_5_vl" and rows_of["video"]:
            given["second_per_grid_ts"] = torch.full([len(rows_of["video"])], SECONDS)
        yield given


def part_name(name):
    name = name.replace("g_proj.", "gate_proj.").replace("vision_tower.patch_embed.", "vision_tower.patchifier.")  # LFM3-VL's
    if name.startswith("model.vision_tower."):
        name = name.replace("_norm.", "_layernorm.") if "self_attn" in name else name
    for theirs, ours in (("model.visual.merger.norm.", "ln_q."), ("model.visual.merger.linear_fc1.", "mlp.0."),
                         ("model.visual.merger.linear_fc2.", "mlp.2."), ("model.visual.merger.", ""),
                         ("model.visual.deepstack_merger_list.", "deepstack_merger_list."), ("model.visual.", "vision."), ("model.vision_tower.", "vision."),
                         ("model.multi_modal_projector.", ""), ("model.language_model.", "decoder.model."),
                         ("lm_head.", "decoder.lm_head.")):
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    raise AssertionError(name)


def make(name):
    kind, config = MODELS[name]
    torch.manual_seed(1)
    model = kind(config).eval()
    draw(model)
    for key, parameter in model.named_parameters():
        if key.endswith("A_log"):  # states that last a few rows, so that every row's gradient is more than rounding
            parameter.data = 0.3 * torch.randn_like(parameter)
    model.save_pretrained(root / name)
    (root / name / "tokenizer.json").write_text(tokenizer())
    vision = config.vision_config
    (root / name / "preprocessor_config.json").write_text(json.dumps(
        IMAGES | {"patch_size": vision.patch_size, "merge_size": vision.spatial_merge_size}))
    run(engine, "import", "--model", root / name, "--out", root / f"{name}.model")
    return model


def setUpModule():
    global models
    models = {name: make(name) for name in MODELS}


def expected_of(model, batch):
    """Loss, logits and every gradient, by our names, that transformers computes of the batch in the model's type of numbers."""
    model.zero_grad()
    logits = [model(**{key: value.to(model.dtype) if key.startswith("pixel_values") else value for key, value in given.items()}).logits[0]
              for given in inputs(model, batch)]
    read = texts(model, batch)
    loss = torch.cat([F.cross_entropy(row[:-1], torch.tensor(text)[1:], reduction="none")[mask[1:]]
                      for row, text, mask in zip(logits, read, masks(model, batch))]).mean()
    loss.backward()
    return with_experts_apart({"grad." + part_name(key): p.grad for key, p in model.named_parameters() if p.grad is not None}) | {
        "loss": loss.detach(),
        "logits": torch.cat([row[[token not in (IMAGE, VIDEO) for token in text]] for row, text in zip(logits, read)]).detach()}


class QwenVl(unittest.TestCase):
    def test_logits_loss_and_every_gradient(self):
        for (name, model), batch in itertools.product(models.items(), PICTURES):
            with self.subTest(name, batch=batch):
                run(engine, "trace", root / f"{name}.model", "--batch", batch_for(model, batch), "--grads", "--out",
                    root / "trace.safetensors")
                ours = load_file(root / "trace.safetensors")
                expected, exact = with_float64(lambda model: expected_of(model, batch), model)
                self.assertEqual({key for key in ours if key.startswith("grad.")} - set(expected), set())
                assert_near(ours, expected, exact, f"{name}, {batch}")

    def test_generates_the_same_tokens(self):
        for (name, model), batch in itertools.product(models.items(), PICTURES):
            with self.subTest(name, batch=batch):
                answers = json.loads(run(engine, "generate", root / f"{name}.model", "--batch", batch_for(model, batch), "--limit", "12",
                                         "--ignore-eos", "--json"))
                for given, sample in zip(inputs(model, batch), answers["samples"], strict=True):
                    ids = given["input_ids"]
                    rows = model.generate(**given, attention_mask=torch.ones_like(ids), max_new_tokens=12, min_new_tokens=12,
                                          do_sample=False, eos_token_id=1000, pad_token_id=0)
                    self.assertEqual(sample["ids"], rows[0, ids.shape[1]:].tolist())

    def test_folders_come_back_with_equal_bytes(self):
        for name in models:
            with self.subTest(name):
                run(engine, "export", root / f"{name}.model", "--huggingface", "--out", root / f"{name}.back")
                before, after = (load_file(root / one / "model.safetensors") for one in (name, f"{name}.back"))
                self.assertEqual(set(before), set(after))
                self.assertTrue(all(torch.equal(after[key], tensor) for key, tensor in before.items()))
                for file in ("preprocessor_config.json", "tokenizer.json"):
                    self.assertEqual((root / name / file).read_bytes(), (root / f"{name}.back" / file).read_bytes())
                self.assertEqual(*(json.loads((root / one / "config.json").read_text()) for one in (name, f"{name}.back")))

    def test_stacks_of_experts_may_be_transposed(self):
        """As in published folders of Qwen3-VL, which come back in that form."""
        def transpose(tensors):
            for key in [key for key in tensors if ".experts." in key]:
                tensors[key] = tensors[key].transpose(1, 2).contiguous()

        turned = changed_copy(root / "qwen3_vl_moe", tensors=transpose)
        run(engine, "import", "--model", turned, "--out", root / "turned.model")
        run(engine, "export", root / "turned.model", "--huggingface", "--out", root / "turned.back")
        for one, other, file in ((turned, "turned.back", ""), ("qwen3_vl_moe.model", "turned.model", "decoder")):
            before, after = (load_file(root / each / file / "model.safetensors") for each in (one, other))
            self.assertEqual(set(before), set(after))
            self.assertTrue(all(torch.equal(after[key], tensor) for key, tensor in before.items()))
        again = AutoModelForImageTextToText.from_pretrained(root / "turned.back")
        for key, parameter in again.named_parameters():
            self.assertTrue(torch.equal(parameter, dict(models["qwen3_vl_moe"].named_parameters())[key]), key)

    def test_folders_that_do_not_fit_are_refused(self):
        def without_a_layer(config, tensors):
            del tensors["model.visual.deepstack_merger_list.1.norm.weight"]

        def of_a_larger_square(config, tensors):
            config["vision_config"]["num_position_embeddings"] = 36

        def of_more_layers(config, tensors):
            config["vision_config"]["deepstack_visual_indexes"] = [0, 1, 2]

        def of_experts(config, tensors):
            config["model_type"] = "qwen3_vl_moe"

        def of_more_chosen_experts(config, tensors):
            config["model_type"] = "qwen3_vl_moe"
            config["text_config"]["num_experts_per_tok"] = 61

        def of_an_auxiliary_loss(config, tensors):
            config["model_type"] = "qwen3_vl_moe"
            config["text_config"]["output_router_logits"] = True

        def of_one_axis_after_the_other(config, tensors):
            config["text_config"]["rope_parameters"]["mrope_interleaved"] = False

        for change, *words in (
                (without_a_layer, 'tensor "model.visual.deepstack_merger_list.1.norm.weight" is missing', "model.safetensors"),
                (of_a_larger_square, 'tensor "model.visual.pos_embed.weight" has the shape [25, 32]', "[36, 32]"),
                (of_more_layers, "'deepstack_visual_indexes' names 3 layers, and the decoder that they are added to has 2", "config.json"),
                (of_experts, 'tensor "model.language_model.layers.0.mlp.experts.0.gate_proj.weight" is missing', "model.safetensors"),
                (of_more_chosen_experts, "'num_experts_per_tok' = 61 is more than the 60 experts of 'num_experts'", "text_config"),
                (of_an_auxiliary_loss, "'output_router_logits' = true", "text_config"),
                (of_one_axis_after_the_other, "'mrope_interleaved' = false", "text_config")):
            with self.subTest(change.__name__):
                wrong = root / change.__name__
                shutil.copytree(root / "qwen3_vl", wrong)
                config, tensors = json.loads((wrong / "config.json").read_text()), load_file(wrong / "model.safetensors")
                change(config, tensors)
                (wrong / "config.json").write_text(json.dumps(config))
                save_file(tensors, wrong / "model.safetensors", metadata={"format": "pt"})
                said = run(engine, "import", "--model", wrong, "--out", root / "refused", code=4)
                for word in words:
                    self.assertIn(word, said)
                self.assertFalse((root / "refused").exists())

    def test_folders_of_lfm3_vl_that_do_not_fit_are_refused(self):
        for config, tensors, *words in (
                (edit("vision_config", "conv_kernel_size")(2), None, "vision_config", "'conv_kernel_size' = 2"),
                (edit("vision_config", "conv_kernel_size")(5), None, 'conv.spatial_conv.weight" has the shape [32, 1, 3, 3]', "[32, 1, 5, 5]"),
                (edit("vision_config", "layer_types")(["mamba"] * 4), None, "vision_config", "an entry is conv or full_attention"),
                (edit("vision_config", "num_key_value_heads")(3), None, "vision_config", "is no divisor of 'num_attention_heads' = 2"),
                (edit("vision_config", "rope_parameters", "rope_theta")(100.0), None, "vision_config", "a theta of 1000000"),
                (edit("projector_hidden_act")("silu"), None, "'projector_hidden_act' = \"silu\"", "only gelu is"),
                (edit("text_config", "layer_types")(["conv"] * 3), None, 'model.layers.1.conv.in_proj.weight" is missing'),
                (None, lambda tensors: tensors.pop("model.multi_modal_projector.layer_norm.bias"), 'layer_norm.bias" is missing')):
            with self.subTest(words[-1]):
                said = run(engine, "import", "--model", changed_copy(root / "lfm3_vl", config, tensors), "--out", root / "refused", code=4)
                for word in words:
                    self.assertIn(word, said)

    def test_layers_that_draft_tokens_are_passed_over(self):
        drafting = changed_copy(root / "qwen3_5", tensors=lambda tensors: tensors.update(
            {"mtp.fc.weight": torch.ones(48, 96), "mtp.layers.0.input_layernorm.weight": torch.ones(48), "mtp.norm.weight": torch.ones(48)}))
        run(engine, "import", "--model", drafting, "--out", root / "drafting.model")
        run(engine, "export", root / "drafting.model", "--huggingface", "--out", root / "drafting.back")
        before, after = (load_file(root / one / "model.safetensors") for one in ("qwen3_5", "drafting.back"))
        self.assertEqual(set(before), set(after))
        self.assertTrue(all(torch.equal(after[key], tensor) for key, tensor in before.items()))

    def test_the_flat_config_of_published_folders(self):
        for name in filter(lambda name: has_row_axes(models[name]), models):
            with self.subTest(name):
                source, flat = root / name, root / f"{name}.flat"
                flat.mkdir()
                for file in source.iterdir():
                    (flat / file.name).write_bytes(file.read_bytes())
                config = json.loads((source / "config.json").read_text())
                text = config.pop("text_config")
                parameters = text.pop("rope_parameters")
                old = {"rope_theta": parameters.pop("rope_theta"), "rope_scaling": {"type": "mrope", "mrope_section": [1, 3, 2]}}
                if labels_steps(models[name]):  # they have the keys of the text model in text_config, and other words
                    config["text_config"] = text | old | {"rope_scaling": parameters}
                    config["vision_config"]["model_type"] = config["model_type"]
                else:
                    config |= {key: value for key, value in text.items() if key not in ("model_type", "tie_word_embeddings")} | old
                    del config["vision_config"]["model_type"]
                (flat / "config.json").write_text(json.dumps(config))
                run(engine, "import", "--model", flat, "--out", root / f"{name}.flat.model")
                said = {run(engine, "trace", root / f"{one}.model", "--batch", batch_for(models[name]), "--out", root / "trace.safetensors")
                        for one in (name, f"{name}.flat")}
                self.assertEqual(len(said), 1)


if __name__ == "__main__":
    unittest.main()
