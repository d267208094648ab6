"""What the tests of whole models whose images are cut into tiles share: pictures and questions about them, a tiny model of random weights
that tools/oracle makes, and what the engine and transformers generate from it. The arguments of the script are those of against_oracle.py."""
import functools
import io
import json
import os
import sys
import tarfile

import forked_program
from against_oracle import engine, folder, load_file, save_file, tool, torch
from byte_tokenizer import tokenizer

os.environ |= {"HF_HUB_OFFLINE": "1", "FVLM_CACHE": str(folder / "cache")}
try:
    from PIL import Image, ImageDraw
    from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast
    from transformers.utils import logging
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

logging.disable_progress_bar()
TOKENS = 8
LOADING = {}  # further arguments of transformers' from_pretrained()
PROMPTS = ["Which colour is it?", "<image>Which shape is it?", "Is this <image> a circle?"]
RECIPE = """
local fvlm = require "fvlm"
return fvlm.recipe {
  name = "pictures", precision = "fp32", log_every = 1, checkpoint = { every = 2 },
  model = fvlm.model { directory = "model" ADAPTERS },
  fvlm.stage "sft" {
    data = fvlm.mix { { "SHARD" }, chat_template = "default", system = "", max_frames = FRAMES, max_text_tokens = 64 },
    objective = OBJECTIVE, optimizer = fvlm.adamw { lr = 1e-3 }, schedule = fvlm.constant {},
    batch = 8, samples = 48, packing = { frames = 8 * FRAMES, tokens = CAPACITY, segments = 8 },
  },
}
"""


def run(*command, code=0):
    result = forked_program.run(command, cwd=folder)
    assert result.returncode == code, f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stderr if code else result.stdout


def draw_picture(number, size):
    """A disk on a ground with a gradient, so that every tile differs."""
    width, height = size
    red = Image.linear_gradient("L").resize(size)
    picture = Image.merge("RGB", (red, red.rotate(180), Image.new("L", size, 60 * number % 256)))
    ImageDraw.Draw(picture).ellipse((width // 4, height // 4, width // 2, height // 2), fill=(255 - 50 * number, 40 * number, 90))
    return picture


def write_pictures(sizes):
    """0.png and so on."""
    for number, size in enumerate(sizes):
        draw_picture(number, size).save(folder / f"{number}.png")


def strengthen(path):
    """Weights that matter: those of a new model are so small that it says the same about every picture."""
    generator = torch.Generator().manual_seed(5)
    tensors = {name: torch.randn(tensor.shape, generator=generator) * 1.2 / tensor[0].numel() ** 0.5 if tensor.dim() > 1 else tensor
               for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def write_questions(sizes):
    """questions.tar, and pairs.tar, whose questions have a chosen and a rejected answer."""
    for file, answers_of in (("questions.tar", lambda number: {"assistant": f"It is {number}."}),
                             ("pairs.tar", lambda number: {"chosen_assistant": f"It is {number}.", "rejected_assistant": "No idea."})):
        with tarfile.open(folder / file, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(12):
                picture = io.BytesIO()
                draw_picture(number, sizes[number % len(sizes)]).save(picture, "png")
                text = json.dumps({"user": "<image>Which number?"} | answers_of(number)).encode()
                for suffix, content in (("png", picture.getvalue()), ("json", text)):
                    entry = tarfile.TarInfo(f"{number:03}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


def make(program, sizes, frames, capacity, *options):
    """The folder `hf` of a new model, the model directory `model`, pictures of these sizes, questions.tar, recipes that learn from it, and
    the model's own tokenizer. A sample has so many frames at most, and a pack so many rows."""
    (folder / "words").mkdir()
    words = json.loads(tokenizer())
    for part in ("pre_tokenizer", "decoder"):  # as the package tokenizers, which adds tokens to it, wants them
        words[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "words" / "tokenizer.json").write_text(json.dumps(words))
    tool(program, folder / "hf", "--tokenizer", folder / "words", *options)
    strengthen(folder / "hf" / "model.safetensors")
    run(engine, "import", "--model", "hf", "--out", "model")
    write_questions(sizes)
    sft, lora = 'fvlm.next_token { on = "answer" }', ", adapters = fvlm.lora { rank = 4, alpha = 8, targets = 'all' }"
    for name, objective, adapters, shard in (("recipe.lua", sft, "", "questions.tar"), ("lora.lua", sft, lora, "questions.tar"),
                                             ("dpo.lua", "fvlm.dpo { beta = 0.1 }", "", "pairs.tar")):
        values = {"OBJECTIVE": objective, "ADAPTERS": adapters, "SHARD": shard, "CAPACITY": capacity, "FRAMES": frames}
        (folder / name).write_text(functools.reduce(lambda text, key: text.replace(key, str(values[key])), values, RECIPE))
    write_pictures(sizes)
    return PreTrainedTokenizerFast.from_pretrained(folder / "hf")


def inputs_of(processor, prompt, pictures):
    """What transformers' processor makes of a question about image files, which come first unless the prompt says where."""
    content = []
    for place, text in enumerate((prompt if "<image>" in prompt else "<image>" * len(pictures) + prompt).split("<image>")):
        content += [{"type": "image"}] * (place > 0) + [{"type": "text", "text": text}] * bool(text)
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return processor(text=text, images=[[Image.open(folder / picture) for picture in pictures]], return_tensors="pt")


def generated(model, inputs, **options):
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False, **options)
    return ids[0, inputs["input_ids"].shape[1]:].tolist()


def write_clip():
    """clip.gif, three pictures a second apart, and what it shows."""
    frames = [draw_picture(number, (90, 50)).quantize(64) for number in range(3)]
    frames[0].save(folder / "clip.gif", save_all=True, append_images=frames[1:], duration=1000)
    with Image.open(folder / "clip.gif") as clip:
        return [clip.seek(place) or clip.convert("RGB") for place in range(3)]


def answer(model, *options):
    return json.loads(run(engine, "generate", model, *options, "--max-tokens", TOKENS, "--ignore-eos", "--json"))


def loaded(path):
    return AutoModelForImageTextToText.from_pretrained(folder / path, **LOADING).eval()


def metrics(name):
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "step"]


def weights(name):
    """Of a run's last checkpoint, with the number of its step in their names."""
    last = max((folder / name / "sft").glob("step-*"))
    return {str(path.relative_to(folder / name)): path.read_bytes() for path in last.rglob("*.safetensors")}


def losses(name):
    return [line["loss"] for line in metrics(name)]


class Pictures:
    """Tests of a model, of which a class has its `processor`, the `sizes` of the pictures, parts of the names of weights that it does not
    use, a part of those of its decoder's layers, parts of those of its linears, and frames_in(), which counts those of an input."""
    unused, decoder, linears = (), "language_model", ("_proj.weight",)

    def expect_same(self, ours, model, inputs):
        self.assertEqual(ours["frames"], self.frames_in(inputs))
        self.expect_same_tokens(ours, model, inputs)

    def expect_same_tokens(self, ours, model, inputs):
        rows = (inputs["input_ids"] == self.processor.image_token_id).sum().item()
        self.assertEqual(ours["prompt"] + rows, inputs["input_ids"].shape[1])
        self.assertEqual(ours["ids"], generated(model, inputs, min_new_tokens=TOKENS, eos_token_id=[]))

    def check_every_picture(self, name="model", theirs="hf"):
        model, answers = loaded(theirs), set()
        for number, size in enumerate(self.sizes):
            for prompt in PROMPTS:
                with self.subTest(prompt, size=size):
                    ours = answer(name, "--image", f"{number}.png", "--prompt", prompt)
                    self.expect_same(ours, model, inputs_of(self.processor, prompt, [f"{number}.png"]))
                    answers.add(tuple(ours["ids"]))
        self.assertGreater(len(answers), len(self.sizes), "the answers depend on picture and prompt")
        shown = ["1.png", "0.png"]
        for prompt in ("Which is larger?", "Is <image> like <image>?"):
            with self.subTest(prompt, shown=shown):
                ours = answer(name, *(word for picture in shown for word in ("--image", picture)), "--prompt", prompt)
                self.expect_same_tokens(ours, model, inputs_of(self.processor, prompt, shown))
        said = run(engine, "generate", name, "--image", "1.png", "--image", "0.png", "--prompt", "<image>?", code=4)
        self.assertIn("the text has 1 <image>, and the sample has 2 images", said)

    def expect_trained(self, ours, theirs, *numbers):
        model = loaded(theirs)
        for number in numbers:
            inputs = inputs_of(self.processor, "Which number?", [f"{number}.png"])
            self.expect_same(answer(ours, "--image", f"{number}.png", "--prompt", "Which number?"), model, inputs)


class Training(Pictures):
    """What a model learns from questions about pictures."""

    def test_a_trained_model_goes_back_and_answers_the_same(self):
        run(engine, "train", "recipe.lua", "--run-dir", "run")
        run(engine, "export", "run", "--huggingface", "--out", "trained")
        before, after = (load_file(folder / name / "model.safetensors") for name in ("hf", "trained"))
        self.assertEqual(set(before), set(after))
        for name, tensor in before.items():
            self.assertEqual(torch.equal(tensor, after[name]), any(part in name for part in self.unused), name)
        self.expect_trained("run", "trained", 0, 4)

    def test_adapters_of_the_decoder_train_alone_and_merge(self):
        run(engine, "train", "lora.lua", "--set", "stages.sft.freeze=[\"vision\",\"connector\"]", "--run-dir", "adapted")
        run(engine, "lora", "merge", "adapted", "--out", "merged")
        run(engine, "export", "merged", "--huggingface", "--out", "merged.hf")
        before, after = (load_file(folder / name / "model.safetensors") for name in ("hf", "merged.hf"))
        changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
        self.assertEqual(changed, {name for name in before if any(part in name for part in self.linears) and self.decoder in name})
        self.expect_trained("merged", "merged.hf", 3)

    def expect_equal_bits(self, recipe, whole, max_steps):
        """Of a run, of one that is stopped and goes on, and of one on preprocessed samples."""
        stopped, prepared, read = (f"{whole}_{name}" for name in ("stopped", "prepared", "read"))
        run(engine, "train", recipe, "--run-dir", whole)
        run(engine, "train", recipe, "--run-dir", stopped, "--max-steps", max_steps)
        run(engine, "train", recipe, "--run-dir", stopped)
        run(engine, "preprocess", recipe, "--out", prepared)
        run(engine, "train", recipe, "--set", f"stages.sft.data.preprocessed={prepared}/sft", "--run-dir", read)
        for name in (stopped, read):
            self.assertEqual(weights(whole), weights(name), name)
            self.assertEqual(losses(whole), losses(name), name)

    def test_stopped_and_preprocessed_runs_come_to_equal_bits(self):
        self.expect_equal_bits("recipe.lua", "whole", max_steps=3)
        self.assertTrue(all("step-000006" in name for name in weights("whole")))

    def test_preferences(self):
        """The two answers to a question read the same picture: at first both models say the same of them."""
        run(engine, "train", "dpo.lua", "--run-dir", "dpo")
        losses = [line["loss"] for line in metrics("dpo")]
        self.assertAlmostEqual(losses[0], 0.6931, delta=1e-3)
        self.assertLess(losses[-1], losses[0])

    def test_planned_memory_is_what_a_step_holds(self):
        """find-batch takes steps of the recipe's own pack first, and measures what their tensors hold."""
        budget, = json.loads(run(engine, "plan", "recipe.lua", "--budget", "--json"))
        planned = budget["memory"]["sum"]
        found, = json.loads(run(engine, "train", "recipe.lua", "--find-batch", "--stage", "sft", "--memory-mib", planned * 5 // 4 // 2**20,
                                "--json"))
        held = found["tries"][0]["peak_bytes"]
        print(f"{planned} bytes planned, {held} held, ratio {planned / held:.3f}")
        self.assertAlmostEqual(planned / held, 1, delta=0.1)
