"""Several adapters over one model: a server's answers beside those of `generate` with each alone, of PEFT folders and of checkpoints, asked for in turns
and at once; and what does not fit.

usage: serve_adapters_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import concurrent.futures
import io
import json
import re
import shutil
import subprocess
import sys
import unittest

import forked_program
from against_oracle import engine, folder, load_file, save_file, tool, torch
from running_server import Server, data_url, picture, user, with_image

try:
    import peft
    from PIL import Image
    from transformers import AutoModel, AutoModelForCausalLM
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

QUESTIONS = ["What is this?", "And what does a cat do all day, and a dog all night, with every detail?", "Why?"]
LIMIT = 12


def run(*command, code=0):
    done = forked_program.run((engine, *command))
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def draw(model, scale):
    """Adapters that change what the model says."""
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = scale * torch.randn_like(parameter)
        elif parameter.requires_grad and "lora_A" not in name:
            parameter.data = parameter.data * (1 + 0.3 * torch.randn_like(parameter))


def adapter_of(part, name, seed, **config):
    torch.manual_seed(seed)
    load = AutoModelForCausalLM if part == "decoder" else AutoModel
    model = peft.get_peft_model(load.from_pretrained(folder / "gqa" / part), peft.LoraConfig(**{"r": 4, "lora_alpha": 8} | config))
    draw(model, 0.5)
    model.save_pretrained(folder / name)


def with_other_connector(model):
    """As where the connector was trained beside the adapters."""
    file = folder / model / "connector.safetensors"
    save_file({name: tensor.flip(0).contiguous() if tensor.dim() > 1 else tensor for name, tensor in load_file(file).items()}, file)


def generated(model, question, shown, *options):
    image = ["--image", folder / "picture.png"] if shown else []
    printed = run("generate", folder / model, "--json", "--prompt", question, *image, "--max-tokens", LIMIT, "--image-size", 28, *options)
    return json.loads(printed)["text"]


def setUpModule():
    global models, alone
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    tool("make-tiny", "model", "gqa", folder / "other", "--seed", "2")
    (folder / "picture.png").write_bytes(picture())
    adapter_of("decoder", "peft", 3, target_modules=["q_proj", "v_proj", "down_proj"], rank_pattern={"v_proj": 2}, alpha_pattern={"q_proj": 3})
    adapter_of("decoder", "wide", 6, target_modules=["q_proj", "o_proj", "gate_proj"], r=7, lora_alpha=21)
    adapter_of("decoder", "of-all", 4, target_modules="all-linear", use_dora=True, modules_to_save=["model.norm"])
    adapter_of("vision", "of-vision", 5, target_modules=["q_proj", "fc1"])
    for name, part in (("of-all", "decoder"), ("wide", "decoder"), ("of-vision", "vision"), ("peft", "decoder")):
        run("lora", "import", folder / name, "--base", folder / "gqa", "--part", part, "--out", folder / f"{name}.model")
    with_other_connector("of-vision.model")
    # By its name for clients: its folder, and what `generate` runs.
    models = {"gqa": (None, "gqa"), "plain": ("peft", "peft.model"), "wide": ("wide", "wide.model"), "dora": ("of-all.model", "of-all.model"), "seeing": ("of-vision.model", "of-vision.model")}
    alone = {(name, question, shown): generated(model, question, shown)
             for name, (_, model) in models.items() for question in QUESTIONS for shown in (False, True)}


def options():
    return [word for name, (adapter, _) in models.items() if adapter for word in ("--adapter", f"{name}={folder / adapter}")]


def asked(server, name, question, shown, **fields):
    message = with_image(question, picture()) if shown else user(question)
    return server.ask(message, model=name, max_tokens=LIMIT, **fields)


class Adapters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--image-size", 28, *options())

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.log

    def test_answers_are_those_of_each_alone_however_they_are_mixed(self):
        for shown in (False, True):
            answers = {name: [alone[name, question, shown] for question in QUESTIONS] for name in models}
            for name in models:
                if name != "gqa" and (shown or name != "seeing"):
                    self.assertNotEqual(answers[name], answers["gqa"], f"the adapter {name} does something")
        self.assertEqual(alone["seeing", QUESTIONS[0], False], alone["gqa", QUESTIONS[0], False])
        for of_one in alone:
            self.assertEqual(asked(self.server, *of_one), alone[of_one], of_one)
        many = list(alone) * 4
        with concurrent.futures.ThreadPoolExecutor(24) as clients:
            together = list(clients.map(lambda of_one: asked(self.server, *of_one), many))
        for of_one, answer in zip(many, together):
            self.assertEqual(answer, alone[of_one], of_one)

    def test_later_frames_are_encoded_with_an_adapter_of_the_decoder(self):
        """The model looks at them with queries that its decoder makes of those before."""
        clip = folder / "clip.gif"
        frames = [Image.open(io.BytesIO(picture(step=step))) for step in (9, 40, 90, 170)]
        frames[0].save(clip, save_all=True, append_images=frames[1:], duration=1000)
        shown = {"type": "video_url", "video_url": {"url": data_url(clip.read_bytes(), "video/gif")}}
        for name, (_, model) in models.items():
            answer = self.server.ask({"role": "user", "content": [shown, {"type": "text", "text": QUESTIONS[1]}]}, model=name, max_tokens=LIMIT)
            printed = run("generate", folder / model, "--json", "--prompt", QUESTIONS[1], "--video", clip, "--max-tokens", LIMIT, "--image-size", 28)
            self.assertEqual(answer, json.loads(printed)["text"], name)

    def test_generate_and_chat_take_a_folder(self):
        for name, (adapter, _) in models.items():
            if adapter:
                self.assertEqual(generated("gqa", QUESTIONS[0], True, "--adapter", folder / adapter), alone[name, QUESTIONS[0], True], name)
        command = [engine, "chat", folder / "gqa", "--adapter", folder / "peft", "--max-tokens", str(LIMIT), "--image-size", "28"]
        said = subprocess.run([str(word) for word in command], input=QUESTIONS[0] + "\n", capture_output=True, text=True, check=True)
        self.assertIn(alone["plain", QUESTIONS[0], False].strip(), said.stdout)

    def test_pages_are_shared_within_an_adapter_alone(self):
        text = "Tell me all that there is to say about the sea and its ships, and then of the mountains, " * 2
        cached = []
        for name in ("gqa", "plain", "dora", "plain", "gqa"):
            request = {"model": name, "messages": [{"role": "system", "content": text}, user("Go on.")], "temperature": 0, "max_tokens": 4}
            status, body, _ = self.server.send("/v1/chat/completions", request)
            self.assertEqual(status, 200, body)
            self.assertEqual(json.loads(body)["model"], name)
            cached.append(json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual(cached[:3], [0, 0, 0])
        self.assertGreater(cached[3], 16)
        self.assertEqual(cached[4], cached[3])

    def test_models(self):
        listed = json.loads(self.server.send("/v1/models")[1])["data"]
        self.assertEqual([(model["id"], model["parent"]) for model in listed], [(name, "gqa" if name != "gqa" else None) for name in models])
        self.assertEqual(len({model["max_model_len"] for model in listed}), 1)
        one = json.loads(self.server.send("/v1/models/dora")[1])
        self.assertEqual((one["id"], one["parent"]), ("dora", "gqa"))
        self.assertEqual(self.server.send("/v1/models/other")[0], 404)
        status, body, _ = self.server.send("/v1/chat/completions", {"model": "other", "messages": [user("Hi")]})
        self.assertEqual((status, json.loads(body)["error"]["param"]), (404, "model"))
        self.assertIn("this server has the model 'gqa' with the adapters 'plain', 'wide', 'dora', 'seeing'", body)
        for path, request in (("/v1/completions", {"prompt": "A cat", "max_tokens": 4, "temperature": 0}),
                              ("/v1/responses", {"input": "A cat", "max_output_tokens": 4, "temperature": 0})):
            answers = {}
            for name in ("gqa", "dora"):
                status, body, _ = self.server.send(path, request | {"model": name})
                document = json.loads(body)
                self.assertEqual((status, document["model"]), (200, name), body)
                answers[name] = document["choices"][0]["text"] if "choices" in document else document["output"][0]["content"][0]["text"]
            self.assertNotEqual(answers["gqa"], answers["dora"], path)

    def test_metrics_are_by_model(self):
        key = 'requests_total{model="dora"}'
        before = self.server.metrics().get(key, 0)
        asked(self.server, "dora", QUESTIONS[0], False)
        self.assertEqual(self.server.metrics()[key] - before, 1)

    def test_an_adapter_takes_the_memory_of_its_own_weights(self):
        """Twice where passes have rows of several adapters: once for those, and once for passes of this one alone."""
        sizes = dict(re.findall(r"'(\w+)' adds ([\d.]+ \w+) to the weights", self.server.log))
        self.assertEqual(set(sizes), set(models) - {"gqa"})
        bytes_of = 2 * sum(tensor.numel() * 4 for tensor in load_file(folder / "peft" / "adapter_model.safetensors").values())
        number, unit = sizes["plain"].split()
        self.assertEqual(unit, "KiB")
        self.assertAlmostEqual(float(number) * 1024, bytes_of, delta=60)


class Refused(unittest.TestCase):
    def said(self, *adapters, model="gqa", code=4):
        given = [word for adapter in adapters for word in ("--adapter", adapter)]
        return run("serve", folder / model, "--port", 0, *given, code=code)

    def test_what_is_no_adapter_of_the_model_is_named_at_the_start(self):
        self.assertIn("expected NAME=FOLDER", self.said(folder / "peft", code=2))
        self.assertIn("the name 'a' is given twice", self.said(f"a={folder / 'peft'}", f"a={folder / 'of-all.model'}", code=2))
        self.assertIn("the name 'gqa' is that of the model", self.said(f"gqa={folder / 'peft'}", code=2))
        self.assertIn("neither adapter_config.json of PEFT nor fvlm.json", self.said(f"a={folder / 'nowhere'}"))
        self.assertIn("the model has no adapters", self.said(f"a={folder / 'other'}"))
        said = self.said(f"a={folder / 'peft.model'}", model="other")
        self.assertRegex(said, r'the adapters of the part "decoder" are on the weights of .*gqa/decoder.* \(checksum [0-9a-f]{16}\), and those of .*other are others')
        self.assertIn("others cannot stand beside it", self.said(f"a={folder / 'peft'}", model="peft.model"))
        shutil.copytree(folder / "peft", folder / "misshapen")
        file = folder / "misshapen" / "adapter_model.safetensors"
        save_file({name: tensor[:, :-1].contiguous() if "lora_A" in name else tensor for name, tensor in load_file(file).items()}, file)
        said = self.said(f"a={folder / 'misshapen'}")
        self.assertIn("misshapen", said)
        self.assertIn("name the base that it was trained on", said)
        (folder / "empty").mkdir()
        self.assertIn("empty", self.said(f"a={folder / 'empty'}"))


if __name__ == "__main__":
    unittest.main()
