"""`fvlm-engine recipe new` as a person uses it who has a model and data: what it writes trains.

usage: recipe_new_test.py FVLM_ENGINE MAKE_SHAPES RECIPES"""
import json
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import forked_program

engine, make_shapes, recipes = (Path(word).absolute() for word in sys.argv[1:4])
folder = Path(tempfile.mkdtemp())


def run(*words, code=0):
    done = forked_program.run(words, cwd=folder)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def new(name, *words, code=0):
    """The text of the recipe, or what was said of a failure."""
    said = run(engine, "recipe", "new", folder / f"{name}.lua", *words, code=code)
    return (folder / f"{name}.lua").read_text() if code == 0 else said


def plan(name):
    return json.loads(run(engine, "plan", folder / f"{name}.lua", "--json"))["plan"]


def setUpModule():
    run(make_shapes, "--out", "shapes", "--samples", "captions=64,text=16,questions=96,pairs=64,heldout/questions=32,heldout/pairs=32")
    run(engine, "train", recipes / "quickstart.lua", "--arg", "data=shapes", "--stage", "align", "--run-dir", "model",
        "--set", "stages.align.samples=32")
    run(engine, "export", "model", "--dtype", "fp32", "--out", "exported")


def tearDownModule():
    shutil.rmtree(folder)


class RecipeNew(unittest.TestCase):
    def test_what_it_writes_trains(self):
        text = new("answers", "--model", "model", "--data", "shapes/questions/*.tar", "--data", "shapes/captions/*.tar",
                   "--held-out", "shapes/heldout/questions/*.tar", "--batch", 8, "--epochs", 2)
        self.assertIn("160 samples", text)
        stage = plan("answers")["stages"][0]
        self.assertEqual([source["weight"] for source in stage["data"]["sources"]], [96, 64])
        self.assertEqual(stage["evaluation"]["every"], 4)  # ten times in 40 steps
        self.assertEqual((plan("answers")["log_every"], plan("answers")["checkpoint"]["every"]), (4, 4))
        self.assertNotIn("chat_template", text)  # the folder's is none, or ChatML
        # As the run that trained the model read them, and measured as `generate` will read them.
        trained = json.loads((folder / "model/plan.json").read_text())["plan"]
        self.assertEqual(plan("answers")["model"]["image_size"], trained["model"]["image_size"])
        self.assertEqual(stage["data"]["system"], trained["stages"][0]["data"]["system"])
        self.assertEqual((stage["mode"], stage["evaluation"]["sets"][0]["modes"]), ("refined", ["autoregressive"]))
        said = run(engine, "train", "answers.lua", "--max-steps", 4)
        self.assertIn("held-out", said)
        self.assertNotIn("truncated", said)

    def test_models_made_from_a_run_are_asked_as_it_was(self):
        def prompt_tokens(model, *options):
            said = run(engine, "generate", model, "--prompt", "Where is it?", "--max-tokens", 1, "--json", *options)
            return json.JSONDecoder().raw_decode(said)[0]["prompt"]

        new("tuned", "--model", "model", "--data", "shapes/questions/*.tar", "--batch", 8, "--epochs", 1, "--lora", 4)
        run(engine, "train", "tuned.lua", "--max-steps", 1)
        run(engine, "lora", "merge", "runs/tuned", "--out", "merged")
        run(engine, "export", "model", "--quantize", "int8", "--out", "int8")
        run(engine, "export", "exported", "--dtype", "bf16", "--out", "again")
        of_run = prompt_tokens("model")
        self.assertLess(of_run, prompt_tokens("model", "--system", "You are a helpful AI assistant."))
        for model in ("runs/tuned", "merged", "exported", "int8", "again"):
            self.assertEqual(prompt_tokens(model), of_run, model)
        said = new("on-adapters", "--model", "runs/tuned", "--data", "shapes/questions/*.tar", "--lora", 4, code=4)
        self.assertIn("`fvlm-engine lora merge` adds them to the base", said)
        self.assertNotIn("draft.lua", said, "a file that nobody has seen")
        # So is what is trained from it.
        self.assertIn('system = ""', new("further", "--model", "merged", "--data", "shapes/questions/*.tar"))

    def test_quantized_models_take_adapters_where_they_can_train(self):
        data = ["--data", "shapes/questions/*.tar"]
        run(engine, "export", "exported", "--quantize", "int4", "--out", "int4")
        self.assertIn("training without --lora needs plain weights", new("codes", "--model", "int4", *data, code=4))
        said = new("all-codes", "--model", "int4", *data, "--lora", 2, code=4)
        self.assertIn("vision.", said)
        skips = re.search(r"export (--quantize .*)", said)[1].replace("'", "").split()
        run(engine, "export", "exported", *skips, "--out", "int4-decoder")
        new("qlora", "--model", "int4-decoder", *data, "--lora", 2)
        run(engine, "train", "qlora.lua", "--max-steps", 1)

    def test_a_checkpoint_that_its_run_will_remove_is_not_named(self):
        train = [engine, "train", recipes / "quickstart.lua", "--arg", "data=shapes", "--stage", "align", "--run-dir", "going",
                 "--set", "stages.align.samples=192", "--set", "checkpoint.every=1", "--set", "checkpoint.keep_last=2"]
        data = ["--data", "shapes/questions/*.tar"]
        run(*train, "--max-steps", 2)
        for model in ("going", "going/align/step-000001"):
            said = new("fleeting", "--model", model, *data, code=4)
            self.assertIn("the run has not finished this checkpoint's stage, and will remove it for newer ones", said)
        run(engine, *re.search(r"fvlm-engine (export .*) models/NAME", said)[1].split(), "copy")
        self.assertIn('directory = "copy"', new("lasting", "--model", "copy", *data, "--lora", 4))
        run(*train)
        self.assertFalse((folder / "going/align/step-000002").exists())
        for model in ("going", "going/align/step-000005"):
            self.assertIn("going/align/step-", new("done-" + model[-1], "--model", model, *data))

    def test_names_of_files_stay_names(self):
        hostile = "new\nreturn 1 --\x1b\u009b\u202e\"]]"
        shutil.copytree(folder / "exported", folder / hostile)
        shutil.copytree(folder / "shapes/captions", folder / ("data" + hostile))
        text = new("hostile", "--model", hostile, "--data", f"data{hostile}/*.tar")
        found = plan("hostile")
        self.assertEqual(found["model"]["directory"], hostile)
        self.assertEqual(found["stages"][0]["data"]["sources"][0]["shards"], [f"data{hostile}/*.tar"])
        for character in "\x1b\u009b\u202e":
            self.assertNotIn(character, text)

    def test_pairs_are_preferences(self):
        new("pairs", "--model", "exported", "--data", "shapes/pairs/*.tar", "--held-out", "shapes/heldout/pairs/*.tar", "--lora", 4)
        found = plan("pairs")
        self.assertEqual(found["model"]["image_size"], 32)  # of no run's checkpoint: the encoder's
        self.assertEqual(found["stages"][0]["objective"][0]["kind"], "dpo")
        self.assertEqual(found["stages"][0]["evaluation"]["sets"][0]["measure"], "preference")
        self.assertEqual(found["stages"][0]["freeze"], ["vision", "connector"])
        self.assertEqual(found["model"]["adapters"][0]["rank"], 4)
        run(engine, "train", "pairs.lua", "--max-steps", 2)

    def test_judged_answers_are_preferences_too(self):
        judged = [{"prompt": "What is it?", "completion": f"a cat {i}", "label": i % 2 == 0} for i in range(20)]
        (folder / "judged.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in judged))
        text = new("judged", "--model", "model", "--data", "judged.jsonl")
        self.assertIn("fvlm.kto { beta = 0.1 }", text)
        run(engine, "train", "judged.lua", "--max-steps", 2)
        (folder / "judged.jsonl").write_text("".join(json.dumps({"prompt": "What is it?", "completion": "a dog"} if i == 0 else sample) + "\n"
                                                     for i, sample in enumerate(judged)))
        said = run(engine, "recipe", "new", folder / "unjudged.lua", "--model", "model", "--data", "judged.jsonl")
        self.assertIn("19 of 20 samples say whether their answer is a good one, and others do not: all answers are learnt", said)
        self.assertIn("fvlm.next_token", (folder / "unjudged.lua").read_text())

    def test_queries_with_what_they_are_to_find_become_embeddings(self):
        found = [{"query": f"a cat {i}", "positive": f"It is a cat, the number {i}.", "negatives": ["a dog", f"a bird {i}", "a fish"][: i % 4]} for i in range(40)]
        (folder / "found.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in found))
        text = new("found", "--model", "model", "--data", "found.jsonl", "--held-out", "20%")
        for part in ('fvlm.stage "retrieval"', "fvlm.contrastive { temperature = 0.02 }", "negatives = 3", 'measure = "retrieval", modes = "autoregressive", samples = 512 }'):
            self.assertIn(part, text)
        run(engine, "train", "found.lua", "--max-steps", 2)
        (folder / "mixed.jsonl").write_text("".join(json.dumps(sample if i % 2 else {"user": "What?", "assistant": "A cat."}) + "\n" for i, sample in enumerate(found)))
        said = new("mixed", "--model", "model", "--data", "mixed.jsonl", code=4)
        self.assertIn("of 40 samples looked at 20 are queries with what they are to find, and 20 are not, and a stage learns from one kind", said)

    def test_pairs_and_questions_are_not_mixed_silently(self):
        answers = ["--model", "model", "--data", "shapes/questions/*.tar"]
        said = new("two", *answers, "--data", "shapes/pairs/*.tar", code=4)
        self.assertIn("the data: of 160 samples looked at 64 are pairs of answers, and 96 are not, and a stage learns from one kind", said)
        self.assertFalse((folder / "two.lua").exists())
        held_out = new("held", *answers, "--held-out", "shapes/heldout/pairs/*.tar", "--held-out", "shapes/questions/*.tar", code=4)
        self.assertIn("the held-out data: of 128 samples looked at 32 are pairs of answers", held_out)
        pairs = [{"user": "What is it?", "chosen_assistant": "a cat", "rejected_assistant": "a dog"}]
        single = [{"user": "What is it?", "assistant": "a cat"}] * 30
        (folder / "few.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in pairs + single))
        said = run(engine, "recipe", "new", folder / "few.lua", "--model", "model", "--data", "few.jsonl")
        self.assertIn("of 31 samples looked at 1 are pairs of answers, and 30 are not; the stage will skip the pairs", said)

    def test_a_share_is_held_out(self):
        new("share", "--model", "model", "--data", "shapes/questions/*.tar", "--data", "shapes/captions/*.tar", "--held-out", "25%", "--batch", 8)
        stage = plan("share")["stages"][0]
        for data in (stage["data"], stage["evaluation"]["sets"][0]["data"]):
            self.assertEqual([source["held_out"] for source in data["sources"]], [0.25, 0.25])
        said = run(engine, "train", "share.lua")
        self.assertNotIn("trained on in the stage", said)
        lines = [json.loads(line) for line in (folder / "runs/share/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line for line in lines if line["kind"] == "step"][-1]["samples"], 72 + 48)
        self.assertEqual({line["samples"] for line in lines if line["kind"] == "evaluation"}, {24 + 16})
        worse = run(engine, "train", "share.lua", "--run-dir", "worse", "--set", "checkpoint.every=3", "--set", f"stages.{stage['name']}.schedule.warmup=1",
                    "--set", f"stages.{stage['name']}.evaluation.sets.held-out.measure=loss",
                    *(word for group in stage["optimizer"]["lr"] for word in ("--set", f"stages.{stage['name']}.optimizer.lr.{group}=1")))
        (best,) = folder.glob("worse/*/best")
        self.assertNotEqual(best.resolve().name, (best.parent / "latest").resolve().name)
        self.assertRegex(worse, f"best +worse/{best.parent.name}/{best.resolve().name}\n")
        for mistake in (["0%"], ["100%"], ["x%"], ["2%", "test.jsonl"]):
            words = [word for each in mistake for word in ("--held-out", each)]
            self.assertIn("one share above 0% and below 100%", new("mistaken", "--model", "model", "--data", "shapes/questions/*.tar", *words, code=2))

    def test_limits_fit_the_samples(self):
        lines = [{"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one two " * n}]} for n in (1, 5, 60)]
        (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        new("texts", "--model", "exported", "--data", "texts.jsonl")
        limit = plan("texts")["stages"][0]["data"]["max_text_tokens"]
        counted = json.loads(run(engine, "data", "stats", "texts.lua", "--json"))["all"]
        self.assertEqual(counted["cut_samples"], 0)
        self.assertLess(limit - counted["tokens"]["most"], 32)
        self.assertEqual(plan("texts")["stages"][0]["batch"]["samples"], 3)  # no more than there are

    def test_held_out_data_are_measured_by_what_they_are(self):
        def measured(name, samples):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
            new(name, "--model", "model", "--data", "shapes/questions/*.tar", "--held-out", f"{name}.jsonl", "--batch", 8)
            return plan(name)["stages"][0]["evaluation"]["sets"][0]

        numbers = ["one", "two", "three", "four"]
        several = measured("several", [{"user": f"How many? {i}", "answers": [numbers[i % 4], str(i % 4 + 1)]} for i in range(40)])
        self.assertEqual((several["measure"], several["max_new_tokens"]), ("answer", 16))
        said = run(engine, "train", "several.lua", "--max-steps", 2)
        self.assertRegex(said, "vqa accuracy .* %")
        classes = measured("classes", [{"user": "What is it?", "assistant": numbers[i % 4]} for i in range(40)])
        self.assertEqual(classes["measure"], "answer")
        captions = measured("captions", [{"user": "What is it?", "assistant": f"{numbers[i % 4]} {i}"} for i in range(40)])
        self.assertEqual(captions["measure"], "loss")
        long = measured("long", [{"user": f"What is {i}?", "assistant": "The answer to that is long. " * 3} for i in range(40)])
        self.assertEqual(long["measure"], "loss")
        turns = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "two"}]
        self.assertEqual(measured("turns", [{"messages": turns * 2}] * 40)["measure"], "loss")

    def test_other_names_of_texts(self):
        (folder / "named.jsonl").write_text(json.dumps({"question": "How many?", "response": "Two."}) + "\n")
        (folder / "asked.jsonl").write_text(json.dumps({"asked": "How many?", "said": "Two."}) + "\n")
        new("named", "--model", "exported", "--data", "named.jsonl")
        new("asked", "--model", "exported", "--data", "asked.jsonl", "--field", "user=asked", "--field", "assistant=said")
        (folder / "late.jsonl").write_text('{"question": "How m\n' + (folder / "named.jsonl").read_text() * 3)
        self.assertIn("1 of the 4 samples looked at cannot be used and will be skipped, the first of them: late.jsonl, line 1",
                      run(engine, "recipe", "new", "late.lua", "--model", "exported", "--data", "late.jsonl"))
        lines = (folder / "named.jsonl").read_text() * 60
        (folder / "seventh.jsonl").write_text(lines + '{"question": "How m\n' * 10)
        self.assertIn("`train` stops at so many broken ones", run(engine, "recipe", "new", "seventh.lua", "--model", "exported", "--data", "seventh.jsonl"))
        for name, fields in (("late", {"user": "question", "assistant": "response"}), ("named", {"user": "question", "assistant": "response"}), ("asked", {"user": "asked", "assistant": "said"})):
            self.assertEqual(plan(name)["stages"][0]["data"]["sources"][0]["fields"], fields)
            if name != "late":
                run(engine, "train", f"{name}.lua")
        for name, sample, kind in (("alpaca", {"instruction": "How many?", "input": "<<>>", "output": "Two."}, "next_token"),
                                   ("vqa", {"question": "How many?", "answers": ["Two.", "2"]}, "next_token"),
                                   ("squad", {"context": "2 cats.", "question": "How many?", "answers": {"text": ["Two."]}}, "next_token"),
                                   ("swift", {"query": "How many?", "response": "Two.", "rejected_response": "Three."}, "dpo"),
                                   ("rlaif", {"question": "How many?", "chosen": "Two.", "rejected": "Three."}, "dpo")):
            (folder / f"{name}.jsonl").write_text(json.dumps(sample) + "\n")
            new(name, "--model", "exported", "--data", f"{name}.jsonl")
            self.assertEqual(plan(name)["stages"][0]["objective"][0]["kind"], kind)
            self.assertIn({"alpaca": "How many?\n<<>>", "squad": "Context: 2 cats.\nQuestion: How many?"}.get(name, "How many?"), run(engine, "data", "show", f"{name}.lua", 0))

    def test_two_folders_get_a_new_connector(self):
        new("fresh", "--vision", "exported/vision", "--decoder", "exported/decoder", "--data", "shapes/captions/*.tar",
            "--image-frames", 2)
        found = plan("fresh")
        self.assertIn("query_dim", found["model"]["connector"])  # foveated
        self.assertEqual(found["stages"][0]["data"]["replicate_image_frames"], 2)
        self.assertEqual(found["stages"][0]["optimizer"]["lr"]["connector"], 1e-3)

    def test_a_new_connector_is_trained_beside_adapters(self):
        model = ("--vision", "exported/vision", "--decoder", "exported/decoder")
        new("fresh-lora", *model, "--data", "shapes/questions/*.tar", "--batch", 8, "--lora", 4)
        stage = plan("fresh-lora")["stages"][0]
        self.assertEqual((stage["freeze"], stage["optimizer"]["lr"]["connector"]), (["vision"], 1e-3))
        run(engine, "train", "fresh-lora.lua", "--max-steps", 2)
        for lora in ([], ["--lora", 4]):
            said = new("fresh-pairs", *model, "--data", "shapes/pairs/*.tar", *lora, code=4)
            self.assertIn("the connector between --vision and --decoder is new", said)
            self.assertIn("give its run as --model", said)

    def test_chats_are_written_as_the_decoder_knows_them(self):
        # Somebody else's: nothing tells how it was trained.
        shutil.copytree(folder / "exported", folder / "other", ignore=shutil.ignore_patterns("plan.json", "stage.json"))
        (folder / "other/decoder/chat_template.jinja").write_text(
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
        text = new("templated", "--model", "other", "--data", "shapes/captions/*.tar")
        self.assertIn('chat_template = "default"', text)
        warning = "chats are written in ChatML"
        self.assertNotIn(warning, run(engine, "train", "templated.lua", "--max-steps", 1))
        # Nothing ends an answer, so that a model would learn to talk on.
        endless = "ends no answer with a token at which generation stops ('<|im_end|>')"
        command = [engine, "recipe", "new", "endless.lua", "--model", "other", "--data", "shapes/captions/*.tar"]
        self.assertIn(endless, run(*command))
        self.assertIn(endless, run(engine, "train", "endless.lua", "--max-steps", 1))
        template = folder / "other/decoder/chat_template.jinja"
        template.write_text(template.read_text().replace(" + '\n' }}", " + '<|im_end|>\n' }}"))
        (folder / "a b").mkdir()
        said = run(*command[:3], "a b/ended.lua", *command[4:])
        self.assertIn("fvlm-engine train 'a b/ended.lua'", said)
        self.assertNotIn("ends no answer", said)
        self.assertNotIn("ends no answer", run(engine, "train", "a b/ended.lua", "--max-steps", 1))
        others = [line for line in text.splitlines() if not re.search("chat_template =|system =", line)]
        (folder / "chatml.lua").write_text(re.sub("max_text_tokens = .*", "max_text_tokens = 128,", "\n".join(others)))
        self.assertIn(warning, run(engine, "train", "chatml.lua", "--max-steps", 1, "--run-dir", "runs/chatml"))
        # ChatML, without the usual system turn.
        turn = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        begins = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
        template.write_text("{% for m in messages %}" + turn + "{% endfor %}" + begins)
        text = new("without-system", "--model", "other", "--data", "shapes/captions/*.tar")
        self.assertIn('chat_template = "default"', text)
        self.assertIn('system = ""', text)
        self.assertIn(warning, run(engine, "train", "chatml.lua", "--max-steps", 1, "--run-dir", "runs/with-system"))
        own = ("--set", "stages.sft.data.system=Be brief.")
        self.assertNotIn(warning, run(engine, "train", "chatml.lua", "--max-steps", 1, "--run-dir", "runs/own-system", *own))

    def test_learns_last_answers_where_a_template_hides_the_others(self):
        shutil.copytree(folder / "exported", folder / "thinking", ignore=shutil.ignore_patterns("plan.json", "stage.json"))
        (folder / "thinking/decoder/chat_template.jinja").write_text(
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if loop.last and m.role == 'assistant' %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
            "{{ m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
        turns = [{"role": role, "content": f"{role} {i}"} for i in range(2) for role in ("user", "assistant")]
        (folder / "turns.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 8)
        text = new("last", "--model", "thinking", "--data", "turns.jsonl")
        self.assertIn("mask_history = true", text)
        run(engine, "train", "last.lua", "--max-steps", 1)
        (folder / "turn.jsonl").write_text((json.dumps({"messages": turns[:2]}) + "\n") * 8)
        self.assertNotIn("mask_history", new("only", "--model", "thinking", "--data", "turn.jsonl"))

    def test_says_what_is_wrong_and_writes_nothing(self):
        (folder / "other.jsonl").write_text(json.dumps({"asked": "How many?", "said": "Two."}) + "\n")
        (folder / "half.json").write_text('{"asked": "How')
        (folder / "kept.lua").write_text("mine")
        (folder / "hf").mkdir()
        (folder / "hf/config.json").write_text("{}")
        model, data = ("--model", "exported"), ("--data", "shapes/captions/*.tar")
        for name, words, code, says in (
                ("keys", (*model, "--data", "other.jsonl"), 4, "--field PART=KEY"),
                ("half", (*model, "--data", "half.json"), 4, "half.json, item 1 (line 1)"),
                ("missing", (*model, "--data", "none.jsonl"), 4, "none.jsonl: no file matches"),
                ("folder", ("--model", "nowhere", *data), 4, "nowhere"),
                ("import", ("--model", "hf", *data), 4, "import --model hf --out models/hf"),
                ("none", data, 2, "--vision DIR and --decoder DIR"),
                ("nothing", model, 2, "no data are named"),
                ("zero", (*model, *data, "--lora", 0), 2, "--lora: expected 1 or more"),
                ("kept", (*model, *data), 7, "the file already exists"),
                ("a name", (*model, *data), 2, "letters, digits")):
            said = new(name, *words, code=code)
            self.assertIn(says, said)
            self.assertEqual((folder / f"{name}.lua").exists(), name == "kept")
        self.assertEqual((folder / "kept.lua").read_text(), "mine")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
