"""GhostVis, LatentWire, SmolVLM and LLaVA as a user runs them, by the bundled recipes at tiny sizes: check and plan, memory beside
what a step held, kill -9 and resume to equal bits, trace, and the report.

usage: systems_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE MAKE_SHAPES MAKE_FACTS TESTS; exit 77 where the oracle's wheels are missing."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import forked_program

make_shapes, make_facts, tests = (Path(sys.argv.pop(3)).resolve() for _ in range(3))
from against_oracle import engine, folder, load_file, save_file, tokenizers, tool, torch

os.environ |= {"HF_HUB_OFFLINE": "1", "FVLM_CACHE": str(folder / "cache")}
try:
    from transformers import (CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM, LlavaConfig, LlavaForConditionalGeneration,
                              PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM)
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

recipes = tests.parent / "recipes"
templates = tests / "jinja" / "chat_templates"
SHAPES = ("documents=300,heldout/documents=20,text=200,stills/captions=300,stills/questions=300,heldout/stills=20,pairs=200,"
          "heldout/pairs=20")
NANOCHAT = ["bos", "user_start", "user_end", "assistant_start", "assistant_end", "python_start", "python_end", "output_start",
            "output_end", "image"]


def run(*command, code=0):
    result = forked_program.run(command, cwd=folder)
    assert result.returncode == code, f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def make_tokenizer(out, special, template, **roles):
    """The tokenizer of make-shapes with special tokens and a chat template, as a folder."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "stills" / "tokenizer" / "tokenizer.json"))
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in special])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)
    made.chat_template = (templates / f"{template}.jinja").read_text()
    made.save_pretrained(out)
    return made


def text_config(tokenizer):
    return LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def make_folders():
    """Hugging Face folders with random weights: CLIP, Llama, LLaVA and SmolVLM."""
    torch.manual_seed(1)
    clip = CLIPVisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, image_size=32, patch_size=8)
    CLIPVisionModel(clip).save_pretrained(folder / "clip")
    llama = make_tokenizer(folder / "Llama-3.2-1B-Instruct", ["<|begin_of_text|>", "<|eot_id|>"], "llama3", bos_token="<|begin_of_text|>",
                           eos_token="<|eot_id|>")
    LlamaForCausalLM(text_config(llama)).save_pretrained(folder / "Llama-3.2-1B-Instruct")
    qwen = make_tokenizer(folder / "Qwen2.5-1.5B-Instruct", ["<|quad_start|>"], "qwen25", eos_token="<|im_end|>")
    config = text_config(qwen).to_dict() | {"model_type": "qwen2", "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1}
    Qwen2ForCausalLM(Qwen2Config(**{key: config[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                                                 "num_attention_heads", "num_key_value_heads",
                                                                 "max_position_embeddings")})).save_pretrained(folder / "Qwen2.5-1.5B-Instruct")
    vicuna = make_tokenizer(folder / "hf-llava", ["<image>"], "llava", bos_token="<|im_start|>", eos_token="<|im_end|>",
                            pad_token="<|endoftext|>", image_token="<image>")
    llava = LlavaConfig(vision_config=clip, text_config=text_config(vicuna), image_token_index=len(vicuna) - 1)
    LlavaForConditionalGeneration(llava).save_pretrained(folder / "hf-llava")
    for name in ("clip", "hf-llava"):
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32).save_pretrained(folder / name)
    tool("make-smolvlm", folder / "hf-smolvlm", "--tokenizer", folder / "stills" / "tokenizer")
    for name in ("smolvlm", "llava"):
        run(engine, "import", "--model", f"hf-{name}", "--out", name)


def setUpModule():
    run(make_shapes, "--out", "stills", "--frames", "2", "--samples", SHAPES)
    run(make_facts, "--out", "facts")
    make_tokenizer(folder / "nanochat", [f"<|{name}|>" for name in NANOCHAT], "nanochat", bos_token="<|bos|>")
    make_folders()
    (folder / "ghostvis.lua").write_text('return require("fvlm.ghostvis").recipe(4)')
    for name, source in (("vqav2", "stills/questions"), ("rlaif-v", "pairs"), ("pretrain", "stills/captions"), ("instruct", "stills/questions"),
                         ("text", "text"), ("heldout/vqav2", "heldout/stills"), ("heldout/rlaif-v", "heldout/pairs"),
                         ("heldout/pretrain", "stills/captions"), ("base", "documents"),
                         ("smoltalk", "text"), ("coco", "stills/captions"), ("textvqa", "stills/questions"),
                         ("heldout/documents", "heldout/documents")):
        shutil.copytree(folder / "stills" / source, folder / "data" / name)
    for name, source in (("train", "train/4"), ("validation", "heldout")):
        shutil.copytree(folder / "facts" / source, folder / "data" / "squad" / name)


def settings(sets, args):
    return [word for key, value in sets.items() for word in ("--set", f"{key}={value}")] + \
           [word for key, value in args.items() for word in ("--arg", f"{key}={folder / value}")]


class System:
    """The tests of one system: its recipe, what makes it tiny, and the decoder rows of a frame or of a source of bytes."""

    sets, args, reads_bytes, modes = {}, {}, False, ()

    @classmethod
    def setUpClass(cls):
        short = {"stages.*.samples": 48, "stages.*.batch": 8, "checkpoint": '{"every":1,"keep_last":100}', "log_every": 1}
        cls.full = [recipes / cls.recipe, *cls.settings(cls.sets)]
        cls.words = [recipes / cls.recipe, *cls.settings(short | cls.sets)]
        cls.plan = json.loads(run(engine, "plan", *cls.words, "--json"))["plan"]
        cls.stages = [stage["name"] for stage in cls.plan["stages"]]
        cls.name = cls.__name__.lower()
        cls.train(f"{cls.name}-whole")

    @classmethod
    def settings(cls, sets):
        return settings(sets, cls.args)

    @classmethod
    def train(cls, name):
        return run(engine, "train", *cls.words, "--run-dir", name)

    def test_check_and_plan(self):
        self.assertIn("all files found", run(engine, "check", *self.words, "--files"))
        printed = run(engine, "plan", *self.words)
        for stage in self.stages:
            self.assertIn(stage, printed)

    def test_planned_memory_is_what_a_step_holds(self):
        """A step of a full pack: find-batch takes steps of the recipe's own pack first, and measures what their tensors hold."""
        budgets = json.loads(run(engine, "plan", *self.full, "--budget", "--json"))
        for budget, stage in zip(budgets, self.stages, strict=True):
            planned = budget["memory"]["sum"]
            found, = json.loads(run(engine, "train", *self.full, "--find-batch", "--stage", stage, "--memory-mib", planned * 5 // 4 // 2**20,
                                    "--json"))
            held = found["tries"][0]["peak_bytes"]
            print(f"{self.name}, {stage}: {planned} bytes planned, {held} held, ratio {planned / held:.3f}")
            self.assertAlmostEqual(planned / held, 1, delta=0.1, msg=stage)

    def checkpoints(self, name, stage):
        return sorted(path for path in (folder / name / stage).glob("step-*") if path.name[5:].isdigit())

    def kill_after(self, name, stage, steps):
        """Starts or resumes a run, and kills it once a stage has so many checkpoints. False where it ended before."""
        process = subprocess.Popen([str(word) for word in (engine, "train", *self.words, "--run-dir", name)], cwd=folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(self.checkpoints(name, stage)) < steps:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        ended = process.wait()
        self.assertIn(ended, (0, -signal.SIGKILL))
        return ended != 0

    def test_a_killed_run_resumes_to_equal_bits(self):
        for attempt in range(10): # on a busy machine a short run may end before this process sees its checkpoints
            name = f"{self.name}-killed-{attempt}"
            if self.kill_after(name, self.stages[0], 2) and self.kill_after(name, self.stages[-1], 2):
                break
        else:
            self.fail("ten runs ended before they could be killed")
        self.assertFalse((folder / name / self.stages[-1] / f"step-{self.steps():06}").exists())
        self.train(name)
        for stage in self.stages:
            ends = [self.checkpoints(run, stage)[-1] for run in (f"{self.name}-whole", name)]
            self.assertEqual(ends[0].name, ends[1].name)
            files = sorted(path.relative_to(ends[0]) for path in ends[0].rglob("*.safetensors"))
            self.assertGreaterEqual(len(files), 4, "encoder, connector, decoder and optimizer")
            for file in files:
                self.assertEqual((ends[0] / file).read_bytes(), (ends[1] / file).read_bytes(), f"{stage}: {file}")

    def steps(self):
        return len(self.checkpoints(f"{self.name}-whole", self.stages[-1]))

    def test_trace(self):
        size = self.plan["model"]["image_size"]
        text = [5, 6] + [-1] * self.rows_per_frame + [7, 8, 9]
        batch = {"source_bytes": torch.tensor(list(b"What is it?A cat.")).byte(), "source_lengths": torch.tensor([11, 6])} \
            if self.reads_bytes else \
            {"frames": torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)), "frame_counts": torch.tensor([1, 1])}
        batch |= {"input_ids": torch.tensor(text + text[1:]),
                 "text_lengths": torch.tensor([len(text), len(text) - 1])}
        batch["loss_mask"] = (batch["input_ids"] > 6).to(torch.uint8)
        save_file(batch, folder / "batch.safetensors")
        run(engine, "trace", f"{self.name}-whole", "--batch", "batch.safetensors", "--grads", "--out", "trace.safetensors")
        traced = load_file(folder / "trace.safetensors")
        self.assertGreater(traced["loss"].item(), 0)
        self.assertEqual(len(traced["logits"]), 9)
        for name, tensor in traced.items():
            self.assertTrue(torch.isfinite(tensor).all(), name)
        self.assertGreater(sum(name.startswith("grad.") for name in traced), 20)

    def test_report(self):
        run(engine, "report", f"{self.name}-whole")
        page = (folder / f"{self.name}-whole" / "report.html").read_text()
        for word in (*self.stages, *(one["name"] for stage in self.plan["stages"] for one in stage["evaluation"]["sets"])):
            self.assertIn(word, page)


class GhostVis(System, unittest.TestCase):
    recipe, args, rows_per_frame = "tiny/ghostvis.lua", {"data": "stills"}, 4
    sets = {"model.decoder.tokenizer": folder / "nanochat", "stages.*.data.chat_template": "default"}

    def test_chats_have_the_contracts_form(self):
        shown = run(engine, "data", "show", *self.words, "0", "--stage", "sft")
        self.assertRegex(shown, r"<\|bos\|><\|user_start\|>\[4 visual rows\]\n.*\?<\|user_end\|><\|assistant_start\|>\[\[.*<\|assistant_end\|>\]\]")


class GhostVisFromClip(System, unittest.TestCase):
    """The stages of ghostvis-d20.lua and -d32.lua, for a decoder of four layers."""

    recipe = folder / "ghostvis.lua"
    args = {"data": "data", "heldout": "data/heldout", "vision": "clip", "tokenizer": "nanochat"}
    sets = {"model.image_size": 32, "model.decoder.depth": 4, "model.connector.queries": 4, "model.connector.heads": 4,
            "stages.*.data.max_text_tokens": 64, "stages.*.packing": '{"frames":8,"tokens":512}'}
    rows_per_frame = 4


class LatentWire(System, unittest.TestCase):
    recipe, args, rows_per_frame, reads_bytes = "tiny/latentwire.lua", {"data": "facts"}, 8, True
    sets = {"stages.*.evaluation.sets.*.samples": 8, "stages.*.packing": '{"frames":32,"tokens":512}'}


class LatentWireForLlama(System, unittest.TestCase):
    recipe, args, rows_per_frame, reads_bytes = "latentwire.lua", {"weights": "", "data": "data"}, 8, True
    sets = {"stages.*.evaluation.sets.*.samples": 8, "model.vision.max_bytes": 256, "model.vision.layers": 2,
            "stages.*.packing": '{"frames":8,"tokens":512}'}


class LatentWireForTwo(LatentWireForLlama):
    """Llama and Qwen read the same latents."""

    args = LatentWireForLlama.args | {"second": "Qwen2.5-1.5B-Instruct"}
    rows_per_frame = 28

    @classmethod
    def settings(cls, sets):
        return settings(sets, {key: value for key, value in cls.args.items() if key != "second"}) + ["--arg", f"second={cls.args['second']}"]

    def results(self):
        lines = [json.loads(line) for line in (folder / f"{self.name}-whole" / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["kind"] == "evaluation"]

    def test_each_decoder_and_both_together_are_evaluated(self):
        sets = {line["set"] for line in self.results()}
        names = ("latents", "text", "token_budget")
        self.assertEqual(sets, {name + end for name in names for end in ("", ".decoder2", ".joint")})
        for line in self.results():
            if not line["set"].endswith(".joint"):
                continue
            self.assertLessEqual(line["all_correct_accuracy"], line["accuracy"])
            self.assertLessEqual(line["accuracy"], line["any_correct_accuracy"])
        steps = [json.loads(line) for line in (folder / f"{self.name}-whole" / "metrics.jsonl").read_text().splitlines()]
        step = next(line for line in steps if line["kind"] == "step")
        terms = [f"term.{term}{end}" for term in ("next_token", "kl", "manifold") for end in ("", ".decoder2")]
        self.assertLessEqual(set(terms), set(step))
        mean = sum(step[f"term.next_token{end}"] + step[f"term.next_token_2{end}"] + step[f"term.next_token_3{end}"] / 2 + step[f"term.kl{end}"] +
                   step[f"term.manifold{end}"] / 1000 for end in ("", ".decoder2")) / 2
        self.assertAlmostEqual(step["loss"], mean, delta=1e-4 * mean)

    def test_eval_and_export_of_both(self):
        printed = json.loads(run(engine, "eval", *self.words, "--model", f"{self.name}-whole", "--json", "--scores", "scores.jsonl"))
        self.assertEqual({(one["set"], one["mode"]) for one in printed["results"]}, {(line["set"], line["mode"]) for line in self.results()})
        self.assertEqual({json.loads(line)["set"] for line in (folder / "scores.jsonl").read_text().splitlines()},
                         {name + end for name in ("latents", "text", "token_budget") for end in ("", ".decoder2")})
        run(engine, "export", f"{self.name}-whole", "--out", f"{self.name}-exported", "--dtype", "fp32")
        parts = json.loads((folder / f"{self.name}-exported" / "fvlm.json").read_text())["parts"]
        self.assertEqual([part["name"] for part in parts], ["vision", "connector", "decoder", "decoder2"])
        for part in ("decoder", "decoder2"):
            self.assertTrue((folder / f"{self.name}-exported" / part / "tokenizer.json").exists())

    def test_bad_input_is_named(self):
        def refused(words, *sets, code=3):
            result = subprocess.run([str(word) for word in (engine, "check", *self.words, *[each for one in sets for each in ("--set", one)])],
                                    capture_output=True, text=True, cwd=folder)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(words, result.stderr)

        refused("the model has no further decoder 'decoder3'", 'stages.latents.data.decoders={"decoder3":{"system":""}}')
        refused("what fvlm.foveated makes of a frame is for one decoder", 'model.connector={}')
        refused("each decoder is its own teacher, and this stage trains decoder2", "stages.latents.freeze=decoder")


class SmolVLM(System, unittest.TestCase):
    recipe, args, rows_per_frame = "smolvlm-256m.lua", {"model": "smolvlm", "data": "data", "heldout": "data/heldout"}, 4
    sets = {"model.connector.factor": 2, "model.image_size": 32, "stages.*.packing": '{"frames":40,"tokens":512}',
            "stages.*.data.max_text_tokens": 64}


class LLaVA(System, unittest.TestCase):
    recipe, args, rows_per_frame = "llava.lua", {"model": "llava", "data": "data", "heldout": "data/heldout"}, 16
    sets = {"model.image_size": 32, "stages.*.packing": '{"frames":8,"tokens":1024}', "stages.*.data.max_text_tokens": 64}


if __name__ == "__main__":
    unittest.main()
