"""`fvlm-engine eval` as a user runs it, against the PyTorch oracle: the loss of every option, log-probabilities of pairs,
rewards, entropies.

usage: eval_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import shutil
import subprocess
import unittest

from eval_sets import MODES, PAIRS, QUESTIONS, RECIPE, SIDE, engine, folder, make_sets, normalised, pixels, results, run, torch, train_mlp
from against_oracle import tokenizers
from fvlm_oracle import Fvlm, label_losses, preference
from safetensors.torch import load_file, save_file


def setUpModule():
    make_sets()


class Texts:
    """The chat of one question with each of its answers, as tokens and loss masks."""

    def __init__(self, tokenizer, user, answers):
        start, end = (tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))

        def plain(text):
            return tokenizer.encode(text, add_special_tokens=False).ids

        self.ids, self.masks = [], []
        for answer in answers:
            prompt = [start, *plain("system\nYou are a helpful AI assistant."), end, *plain("\n"),
                      start, *plain("user\n" + user), end, *plain("\n"), start, *plain("assistant\n")]
            said = [*plain(answer), end, *plain("\n")]
            self.ids.append(prompt + said)
            self.masks.append([0] * len(prompt) + [1] * len(said))

    def tensors(self):
        return (torch.tensor(sum(self.ids, [])), torch.tensor(sum(self.masks, [])), [len(ids) for ids in self.ids])


class Eval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.reference = (Fvlm.load(folder / name, torch.float64) for name in ("gqa", "reference"))
        cls.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "gqa" / "decoder" / "tokenizer.json"))

    @torch.no_grad()
    def option_losses(self, question, mode):
        user, options, _, frames, _ = QUESTIONS[question]
        texts = Texts(self.tokenizer, user, options).tensors()
        shown = normalised(pixels(f"q{question}", frames)).double() if frames else torch.zeros(0, 3, SIDE, SIDE).double()
        _, tokens, _ = self.model.visual(shown, [frames], mode)
        many = len(options)
        hidden = self.model.text_hidden(tokens.repeat(many, 1), [frames] * many, texts[0], texts[2])
        return label_losses(hidden, self.model.decoder.lm_head, *texts)

    def test_every_options_loss_is_the_oracles(self):
        scores = folder / "scores.jsonl"
        found = results("--set-name", "questions", "--scores", scores)
        lines = [json.loads(line) for line in scores.read_text().splitlines()]
        self.assertEqual(len(lines), len(MODES) * len(QUESTIONS))
        for mode in MODES:
            hits, right_loss, right_labels = 0, 0, 0
            for question, (_, options, right, _, source) in enumerate(QUESTIONS):
                line, = (line for line in lines if line["mode"] == mode and line["key"] == f"q{question}")
                sums, labels = self.option_losses(question, mode)
                means = (sums / labels).tolist()
                for option, (own, oracle) in enumerate(zip(line["losses"], means, strict=True)):
                    self.assertLess(abs(own - oracle), 1e-5 * oracle, f"{mode}, q{question}, option {option}")
                self.assertEqual(line["labels"], labels.tolist())
                self.assertEqual((line["right"], line["source"]), (right, source or "unnamed"))
                hits += means.index(min(means)) == right
                right_loss, right_labels = right_loss + sums[right].item(), right_labels + labels[right].item()
            result = found["questions", mode]
            self.assertAlmostEqual(result["accuracy"], hits / len(QUESTIONS), 12)
            self.assertLess(abs(result["loss"] - right_loss / right_labels), 1e-5)
            self.assertEqual(result["samples"], len(QUESTIONS))
            self.assertEqual({name for name in result if "." in name},
                             {"accuracy.animals", "accuracy.numbers", "accuracy.unnamed"})

    def test_the_loss_of_questions_is_that_of_their_right_answers(self):
        found = results("--stage", "instruct")
        for mode in MODES:
            self.assertAlmostEqual(found["losses", mode]["loss"], found["questions", mode]["loss"], 5)

    @torch.no_grad()
    def test_preferences_and_rewards_are_the_oracles(self):
        found = results("--stage", "prefer", "--reference", folder / "reference")
        for mode in MODES:
            batch = {"frames": torch.cat([normalised(pixels(f"p{i}", pair[3])) for i, pair in enumerate(PAIRS)]).double(),
                     "frame_counts": torch.tensor([pair[3] for pair in PAIRS])}
            for side, prefix in ((1, "chosen_"), (2, "rejected_")):
                texts = [Texts(self.tokenizer, pair[0], [pair[side]]).tensors() for pair in PAIRS]
                batch |= {prefix + "input_ids": torch.cat([text[0] for text in texts]),
                          prefix + "loss_mask": torch.cat([text[1] for text in texts]),
                          prefix + "text_lengths": torch.tensor([text[2][0] for text in texts])}
            oracle = preference(self.model, self.reference, batch, mode, 0.3, logits=False)
            result, margins = found["pairs", mode], oracle["chosen_log_probs"] - oracle["rejected_log_probs"]
            self.assertAlmostEqual(result["accuracy"], (margins > 0).double().mean().item(), 12)
            self.assertLess(abs(result["margin"] - margins.mean().item()), 1e-4, mode)
            self.assertAlmostEqual(result["reward_accuracy"], oracle["accuracy"].item(), 12)
            self.assertLess(abs(result["reward_margin"] - oracle["margin"].item()), 1e-4, mode)
        self.assertNotIn("reward_margin", results("--stage", "prefer")["pairs", "coarse_fine"])

    @torch.no_grad()
    def test_entropy_is_the_oracles(self):
        found = results("--set-name", "questions")
        for mode in MODES:
            entropies = []
            for question, (_, _, _, frames, _) in enumerate(QUESTIONS):
                if frames:
                    shown = normalised(pixels(f"q{question}", frames)).double()
                    maps = self.model.attention(shown, self.model.visual(shown, [frames], mode)[0])
                    entropies += (-(maps * maps.log()).sum(-1)).mean((1, 2)).tolist()
            expected = sum(entropies) / len(entropies)
            self.assertLess(abs(found["questions", mode]["attention_entropy"] - expected), 1e-5, mode)

    def test_prints_tables_and_shows_samples(self):
        done = run("--stage", "instruct", "--samples", "2", "--show", folder / "shown")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("questions", "coarse_only", "accuracy", "entropy", "category"):
            self.assertIn(word, done.stdout)
        self.assertIn("gqa computes in fp32 on the CPU", done.stderr)
        self.assertTrue((folder / "shown" / "instruct" / "questions" / "000.json").exists(), "the recipe shows none, and --show was asked for")
        (folder / "showing.lua").write_text(RECIPE.replace("MODEL", "gqa").replace("entropy = true", "show = 3"))
        done = run("--set-name", "questions", "--show", folder / "shown", recipe="showing.lua")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(list((folder / "shown" / "instruct" / "questions").glob("*.json"))), 3)
        shown = json.loads((folder / "shown" / "instruct" / "questions" / "000.json").read_text())
        self.assertEqual((shown["question"], shown["expected"]), (QUESTIONS[0][0], QUESTIONS[0][1][0]))
        self.assertEqual((len(shown["frames"]), shown["grid"], len(shown["attention"][0])), (3, [4, 4], 16))

    def test_a_loss_that_is_not_finite_is_said(self):
        for part, files in (("vision", "config.json preprocessor_config.json"), ("decoder", "config.json tokenizer.json")):
            (folder / "nan" / part).mkdir(parents=True)
            for file in files.split():
                if (folder / "gqa" / part / file).exists():
                    shutil.copy(folder / "gqa" / part / file, folder / "nan" / part / file)
            tensors = load_file(folder / "gqa" / part / "model.safetensors")
            if part == "decoder":
                tensors["model.norm.weight"][0] = float("nan")
            save_file(tensors, folder / "nan" / part / "model.safetensors")
        imported = subprocess.run([engine, "import", "--vision", folder / "nan" / "vision", "--decoder", folder / "nan" / "decoder", "--connector",
                                   folder / "gqa" / "connector.safetensors", "--out", folder / "not-finite"], capture_output=True, text=True)
        self.assertIn("decoder.model.norm.weight: 1 of its values are NaN", imported.stderr)
        done = run("--set-name", "questions", "--mode", MODES[0], model="not-finite")
        self.assertIn(f"questions, {MODES[0]}: the loss is not finite", done.stderr)

    def test_mode_replaces_the_modes_of_a_recipes_sets(self):
        found = results("--set-name", "questions", "--mode", "coarse_only")
        self.assertEqual(set(found), {("questions", "coarse_only")})

    def test_a_model_is_not_evaluated_in_modes_that_it_does_not_have(self):
        train_mlp()
        done = run("--stage", "instruct", model="mlp")
        self.assertEqual(done.returncode, 4, done.stdout)
        self.assertIn("the mode coarse_fine, which the model's connector, mlp, does not have", done.stderr)
        self.assertIn("in another mode: patches", done.stderr)
        done = run("--mode", "coarse_only", model="mlp")
        self.assertEqual((done.returncode, "use patches" in done.stderr), (2, True), done.stderr)

    def test_bad_input_is_refused_with_its_reason(self):
        for code, words, options in (
                (2, ["no stage 'later'", "instruct or prefer"], ["--stage", "later"]),
                (2, ["the stage 'prefer' has no evaluation set 'losses'", "it has pairs"], ["--stage", "prefer", "--set-name", "losses"]),
                (2, ["no evaluation set 'quiz'", "questions"], ["--set-name", "quiz"]),
                (2, ["--samples"], ["--samples", "-1"]),
                (2, ["--frames needs --questions", "max_frames of the evaluation set's mix"], ["--frames", "3"]),
                (2, ["--system needs --questions"], ["--system", "Hello"]),
                (2, ["--image-size needs --questions", "--set model.image_size=N"], ["--image-size", "28"]),
                (2, ["--max-pixels needs --questions", "--set model.max_pixels=N"], ["--max-pixels", "784"]),
                (2, ["--measure needs --questions"], ["--measure", "choice"]),
                (4, ["there is no such folder", "name a model directory"], ["--reference", folder / "nothing"])):
            done = run(*options)
            self.assertEqual(done.returncode, code, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)
        (folder / "wrong.lua").write_text(RECIPE.replace("MODEL", "gqa").replace('"losses", "loss"', '"losses", "preference"'))
        done = run(recipe="wrong.lua")
        self.assertEqual(done.returncode, 4)
        for word in ("'q0'", "is no pair", "losses.tar"):
            self.assertIn(word, done.stderr)
        done = run(model="nothing")
        self.assertEqual(done.returncode, 4, done.stderr)
        shutil.copytree(folder / "gqa", folder / "swapped")
        tokenizer = folder / "swapped" / "decoder" / "tokenizer.json"
        words = json.loads(tokenizer.read_text())
        vocabulary = words["model"]["vocab"]
        first, second = sorted((token for token in vocabulary if len(token) == 1), key=vocabulary.get)[:2]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        tokenizer.write_text(json.dumps(words))
        done = run(model="swapped")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("the model has another tokenizer than the recipe's: id ", done.stderr)
        done = run("--set", "stages.instruct.evaluation.sets=[]", "--stage", "instruct")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("the stage 'instruct' has no evaluation set\n  name a stage that has one, or leave out --stage: prefer", done.stderr)


if __name__ == "__main__":
    unittest.main()
