"""What the tests of tuning share whose model reads images of any size in cells: a recipe all.lua whose steps each have all samples of
questions.tar, so that their order means nothing, and what its steps have to be."""
import contextlib
import io
import json
import os
import socket
import subprocess
import tarfile
from unittest import mock

import picture_questions
from picture_questions import Pictures, answer, draw_picture, engine, folder, generated, inputs_of, loaded, losses, metrics, run, torch, write_clip
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

SAMPLES = 12  # of questions.tar
LAYERS, WIDTH = 2, 64  # of the decoder
CLIPS = [((24, 16), 5), ((16, 32), 2), ((8, 8), 4), ((40, 24), 3)]  # size and number of frames of each video


def write_questions(sizes):
    """Pictures of these sizes in turns; returns the text of a recipe whose steps have all samples."""
    for number in range(SAMPLES):
        draw_picture(number, sizes[number % len(sizes)]).save(folder / f"question-{number}.png")
    return (folder / "recipe.lua").read_text().replace("batch = 8, samples = 48", f"batch = {SAMPLES}, samples = {4 * SAMPLES}")


def clip(number):
    """The frames of a video, by their number of colours as a GIF holds them."""
    size, count = CLIPS[number % len(CLIPS)]
    return [draw_picture(number + place, size).quantize(64).convert("RGB") for place in range(count)]


def write_videos(questions):
    """Videos a frame a second, every other one as a GIF, and else as numbered pictures; and a recipe videos.lua, which is that of questions about
    pictures but for them."""
    (folder / "videos.lua").write_text(questions.replace("questions.tar", "videos.tar")
                                       .replace("max_frames = 40, max_text_tokens = 64", "max_frames = 64, max_text_tokens = 160")
                                       .replace(f"batch = {SAMPLES}, samples = {4 * SAMPLES}", "batch = 8, samples = 32"))
    with tarfile.open(folder / "videos.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        def add(name, content):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for number in range(8):
            frames = [frame.quantize(64) for frame in clip(number)]
            if number % 2 == 0:
                video = io.BytesIO()
                frames[0].save(video, "gif", save_all=True, append_images=frames[1:], duration=1000)
                add(f"{number:03}.gif", video.getvalue())
                (folder / f"{number}.gif").write_bytes(video.getvalue())
            else:
                for place, frame in enumerate(frames):
                    picture = io.BytesIO()
                    frame.convert("RGB").save(picture, "png")
                    add(f"{number:03}.{place:03}.png", picture.getvalue())
            add(f"{number:03}.json", json.dumps({"user": "<video>Which number?", "assistant": f"It is {number}."}).encode())


@contextlib.contextmanager
def answers_are_text(model, asked):
    """The tokens behind so many stand for themselves, also those that images have in a prompt."""
    def mask(input_ids, *others, **named):
        return type(model).get_placeholder_mask(model, input_ids * (torch.arange(input_ids.shape[1]) < asked), *others, **named)
    if hasattr(model, "get_placeholder_mask"):
        model.get_placeholder_mask = mask
    yield
    model.__dict__.pop("get_placeholder_mask", None)


def two_ranks():
    """What the first of two ranks says that share the texts of recipe.lua, and the exit codes of both."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([engine, "train", "recipe.lua", "--context-parallel", "2", "--run-dir", "shared"], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                       MASTER_PORT=str(port))) for rank in range(2)]
    said = [rank.communicate(timeout=1800)[0] for rank in ranks]
    return said[0], [rank.returncode for rank in ranks]


class CellPictures(Pictures):
    begin = end = ""  # what the chat template has around an answer

    def summed_loss(self, model, number):
        """Of an answer, its number of labels, and that of the text's tokens."""
        return self.loss_of_answer(model, inputs_of(self.processor, "Which number?", [f"question-{number}.png"]), number)

    def loss_of_answer(self, model, inputs, number):
        answer = self.processor.tokenizer(f"{self.begin}It is {number}.{self.end}", return_tensors="pt")["input_ids"]
        losses = self.label_losses(model, inputs, answer)
        return losses.sum(), answer.numel(), inputs["input_ids"].shape[1]

    @staticmethod
    def label_losses(model, inputs, answer):
        """Of each token of an answer, which the inputs have behind them from then on."""
        asked = inputs["input_ids"].shape[1]
        inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(answer)], 1)
        del inputs["attention_mask"]
        end = inputs["input_ids"].shape[1]
        with answers_are_text(model.model, asked):
            logits = model(**inputs, logits_to_keep=torch.arange(asked - 1, end - 1)).logits[0]
        if len(logits) == end:  # of a model that does not know logits_to_keep
            logits = logits[asked - 1:end - 1]
        return torch.nn.functional.cross_entropy(logits, answer[0], reduction="none")

    def mean_loss(self, model):
        parts = [self.summed_loss(model, number) for number in range(SAMPLES)]
        return sum(loss for loss, _, _ in parts) / sum(labels for _, labels, _ in parts)


class CellTraining(CellPictures, picture_questions.Training):
    attending = LAYERS  # of the decoder's

    def uncounted(self, counted):
        """What PyTorch counts besides, in float operations."""
        return 0

    def take_step(self, line, model, loss, optimizer):
        """Of transformers' model, beside the line of metrics of the engine's step."""
        self.assertAlmostEqual(line["loss"], loss.item(), delta=2e-4, msg=f"step {line['step']}")
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        self.assertAlmostEqual(line["gradient_norm"] / norm, 1, delta=1e-3, msg=f"step {line['step']}")
        optimizer.step()

    def expect_steps_of_transformers(self, name, mean_loss, falls_to):
        """Trains the recipe, and transformers' model beside it, which is returned."""
        run(engine, "train", f"{name}.lua", "--run-dir", name)
        lines, model = metrics(name), loaded("hf")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
        for line in lines:
            self.take_step(line, model, mean_loss(model), optimizer)
        self.assertLess(lines[-1]["loss"], falls_to * lines[0]["loss"])
        return model

    def test_floating_point_operations_are_those_that_pytorch_counts(self):
        run(engine, "train", "all.lua", "--run-dir", "counted", "--max-steps", 1)
        line, model, unseen = metrics("counted")[0], loaded("hf"), 0
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
            for number in range(SAMPLES):
                loss, _, rows = self.summed_loss(model, number)
                loss.backward()
                unseen += rows * (rows - 1) / 2 * 4 * WIDTH * self.attending * 3  # pairs that the causal mask hides, in three passes
        ours = line["flops_per_second"] * sum(value for name, value in line.items() if name.startswith("time."))
        theirs = counted.get_total_flops() - unseen - self.uncounted(counted)
        print(f"{ours:.0f} floating-point operations, PyTorch {theirs:.0f}")
        self.assertAlmostEqual(ours / theirs, 1, delta=1e-4)

    def test_a_new_recipe_of_a_few_steps_shows_what_is_learnt(self):
        run(engine, "recipe", "new", "mine.lua", "--model", "model", "--data", "questions.tar", "--epochs", 4)
        said = run(engine, "train", "mine.lua", "--set", "stages.sft.optimizer.lr=1e-3")
        self.assertRegex(said, r"loss, step 1 +final loss\nsft +4 ")
        found = losses("runs/mine")
        self.assertEqual(len(found), 4)
        self.assertLess(found[-1], 0.9 * found[0])

    def test_recomputed_layers_change_nothing(self):
        run(engine, "train", "recipe.lua", "--run-dir", "kept")
        for name, layers in (("every", '"all"'), ("second", '{"every": 2}'), ("light", '"light"')):
            run(engine, "train", "recipe.lua", "--set", f"stages.sft.activation_checkpointing={{\"vision\": {layers}, \"decoder\": {layers}}}",
                "--run-dir", name)
            for recomputed, kept in zip(losses(name), losses("kept"), strict=True):  # gradients are summed in another order
                self.assertAlmostEqual(recomputed, kept, delta=2e-6 * kept)

    def test_two_ranks_share_texts_and_their_positions(self):
        run(engine, "train", "recipe.lua", "--run-dir", "alone")
        said, codes = two_ranks()
        self.assertEqual(codes, [0, 0], said)
        for shared, alone in zip(losses("shared"), losses("alone"), strict=True):
            self.assertAlmostEqual(shared, alone, delta=1e-4)

    def expect_two_ranks_refused(self):
        """Of a decoder with layers that read the rows before their own."""
        said, codes = two_ranks()
        self.assertNotIn(0, codes)
        self.assertIn("layers of the decoder have a convolution or a delta rule, which reads rows that another rank has", said)


class ImageGeneration(CellPictures):
    """Of a model that reads images and no videos; processor_name is what messages call its image processor."""
    has_limits = True  # of the pixels of an image, which a user may set

    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()

    def test_videos_are_refused(self):
        write_clip()
        said = run(engine, "generate", "model", "--video", "clip.gif", "--prompt", "What happens?", code=4)
        self.assertIn(f"videos are not supported with the image processor of {self.processor_name}\n", said)


    def test_limits_of_images_are_those_of_transformers_or_refused(self):
        asked, limits = ["--image", "3.png", "--prompt", "Which number?"], {"min_pixels": 6 * 64, "max_pixels": 12 * 64}
        if not self.has_limits:
            refusal = f"max_pixels cannot be set: the image processor of {self.processor_name} has no such limit"
            self.assertIn(refusal, run(engine, "generate", "model", *asked, "--max-pixels", 12 * 64, code=4))
            self.assertIn(refusal, run(engine, "train", "recipe.lua", "--set", "model.max_pixels=768", "--run-dir", "refused", code=4))
            return
        with mock.patch.object(self.processor.image_processor, "size", {"shortest_edge": limits["min_pixels"], "longest_edge": limits["max_pixels"]}):
            inputs = inputs_of(self.processor, "Which number?", ["3.png"])
        ours = answer("model", *asked, "--min-pixels", limits["min_pixels"], "--max-pixels", limits["max_pixels"])
        self.expect_same(ours, loaded("hf"), inputs)
        self.assertLess(ours["frames"], answer("model", *asked)["frames"])


class ImageTraining(CellTraining):
    frames_of_a_pack = 40

    def test_steps_are_those_of_transformers(self):
        self.expect_steps_of_transformers("all", self.mean_loss, 0.9)

    def test_packs_of_few_samples_come_to_the_same_steps(self):
        run(engine, "train", "recipe.lua", "--run-dir", "packed")
        run(engine, "train", "recipe.lua", "--set", 'stages.sft.packing={"frames": %d, "tokens": 256, "segments": 8}' % self.frames_of_a_pack,
            "--run-dir", "small")
        for packed, alone in zip(losses("packed"), losses("small"), strict=True):
            self.assertAlmostEqual(packed, alone, delta=2e-4 * packed)


class RewardTraining:
    """Of answers that the model gives itself; mixed into CellTraining, of a module that has a recipe all.lua with a set `asked`."""
    reward_loss = "grpo"

    def test_steps_on_rewards_are_those_of_transformers(self):
        kl, longest, text = 0.2, 6, (folder / "all.lua").read_text()
        objective = (f"fvlm.grpo {{ loss = '{self.reward_loss}', answers = 3, max_new_tokens = {longest}, reward = function(answer) return #answer.text % 4 end, "
                     f"kl = {kl}, show = 100 }}")
        (folder / "rewards.lua").write_text(text.replace('fvlm.next_token { on = "answer" }', objective).replace(f"samples = {4 * SAMPLES}", f"samples = {2 * SAMPLES}"))
        run(engine, "train", "rewards.lua", "--run-dir", "rewards")
        shown = [json.loads(line) for line in (folder / "rewards" / "sft" / "rollouts.jsonl").read_text().splitlines()]
        model, reference = loaded("hf"), loaded("hf")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
        for line in metrics("rewards"):
            losses = []
            for prompt in (prompt for prompt in shown if prompt["step"] == line["step"]):
                rewards = torch.tensor([answer["reward"] for answer in prompt["answers"]])
                scale = rewards.std() + 1e-4 if self.reward_loss == "grpo" else 1
                for answer, advantage in zip(prompt["answers"], (rewards - rewards.mean()) / scale, strict=True):
                    self.assertAlmostEqual(answer["advantage"], advantage.item(), delta=1e-4)
                    self.assertEqual(answer["reward"], len(answer["text"].encode()) % 4)
                    of_both = [self.label_losses(each, inputs_of(self.processor, "Which number?", [f"question-{int(prompt['key'])}.png"]),
                                                 torch.tensor([answer["ids"]])) for each in (model, reference)]
                    difference = of_both[0] - of_both[1].detach()
                    of_tokens = advantage * of_both[0] + kl * (difference.exp() - difference - 1)
                    losses.append(of_tokens.mean() if self.reward_loss == "grpo" else of_tokens.sum() / longest)
            self.assertEqual(len(losses), 3 * SAMPLES)
            self.take_step(line, model, sum(losses) / len(losses), optimizer)
        self.assertGreater(line["reference_kl"], 0)

    def test_evaluation_has_the_answers_of_generation(self):
        run(engine, "eval", "all.lua", "--model", "model", "--set", "stages.sft.evaluation.sets.asked.measure=answer",
            "--set", "stages.sft.evaluation.sets.asked.max_new_tokens=8", "--scores", "scores.jsonl")
        scores = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
        self.assertEqual(len(scores), SAMPLES)
        for score in scores:
            self.assertEqual(score["expected"], [f"It is {int(score['key'])}."])
            ours = json.loads(run(engine, "generate", "model", "--image", f"question-{int(score['key'])}.png", "--prompt", "Which number?",
                                  "--max-tokens", 8, "--json"))
            self.assertEqual(score["answer"], ours["text"].strip(" \t\r\n"))


class VideoTraining:
    """Of a model that reads videos, too; mixed into CellTraining."""
    video_row = "<|video_pad|>"  # what stands for a row of a video

    def inputs_of_video(self, number):
        content = [{"type": "video"}, {"type": "text", "text": "Which number?"}]
        text = self.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        return self.processor(text=text, videos=[clip(number)], return_tensors="pt")

    def mean_loss_of_videos(self, model):
        parts = [self.loss_of_answer(model, self.inputs_of_video(number), number) for number in range(8)]
        return sum(loss for loss, _, _ in parts) / sum(labels for _, labels, _ in parts)

    def test_steps_on_videos_are_those_of_transformers(self):
        self.expect_steps_of_transformers("videos", self.mean_loss_of_videos, 0.9)
        run(engine, "export", "videos", "--huggingface", "--out", "videos.hf")
        trained = loaded("videos.hf")
        for number in (0, 2):
            ours = answer("videos", "--video", f"{number}.gif", "--prompt", "Which number?")
            inputs = self.inputs_of_video(number)
            rows = (inputs["input_ids"] == self.processor.tokenizer.convert_tokens_to_ids(self.video_row)).sum().item()
            self.assertEqual(ours["frames"], rows)
            self.assertEqual(ours["ids"], generated(trained, inputs, min_new_tokens=8, eos_token_id=[]))

    def test_runs_on_videos_stop_and_read_preprocessed_cells_to_equal_bits(self):
        self.expect_equal_bits("videos.lua", "clips", max_steps=2)
        small = ["--set", "stages.sft.packing={\"frames\": 64, \"tokens\": 1024, \"segments\": 8}"]
        run(engine, "train", "videos.lua", *small, "--run-dir", "clips_small")
        for packed, alone in zip(losses("clips"), losses("clips_small"), strict=True):
            self.assertAlmostEqual(packed, alone, delta=2e-4 * packed, msg="steps of many packs")
