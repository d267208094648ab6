"""What the tests of `fvlm-engine eval` share: its samples written by hand into shards, and pictures as files."""
import io
import json
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import forked_program

sys.path.insert(0, str(Path(__file__).parent.parent / "model"))
from against_oracle import engine, folder, tool, torch

MODES = ("coarse_fine", "coarse_only", "autoregressive")
SIDE = 28
QUESTIONS = [("What sat on the mat?", ["The cat.", "A camera.", "0123"], 0, 3, "animals"),
             ("What did it do then?", ["It ran!", "It is 3.14"], 1, 1, "animals"),
             ("Describe this.", ["A video.", "A brief caption for this video.", "you are helpful", "no"], 2, 0, ""),
             ("How much is it?", ["3.14", "9 is 3.14", "0"], 0, 4, "numbers")]
PAIRS = [("Describe this.", "A video shows what a camera saw.", "The mat sat.", 2),
         ("What sat on the mat?", "The cat, and then it ran!", "0123456789", 3),
         ("And then?", "it ran", "the mat sat on the cat", 0)]
RECIPE = """local fvlm = require "fvlm"
local function set(name, measure)
  return fvlm.evaluation(name) { data = fvlm.mix { { name .. ".tar", name = "unnamed" } }, measure = measure, entropy = true,
                                 modes = { "coarse_fine", "coarse_only", "autoregressive" } }
end
local function stage(name, objective, sets)
  return fvlm.stage(name) { data = fvlm.mix { { "pairs.tar" } }, objective = objective, optimizer = fvlm.adamw { lr = 1 },
                            samples = 8, batch = 4, evaluation = sets }
end
return fvlm.recipe {
  name = "tiny", precision = "fp32", model = fvlm.model { vision = "MODEL/vision", decoder = "MODEL/decoder", image_size = 28 },
  stage("instruct", fvlm.next_token { on = "answer" }, { set("questions", "choice"), set("losses", "loss") }),
  stage("prefer", fvlm.dpo { beta = 0.3 }, { set("pairs", "preference") }),
}
"""


def pixels(name, frames):
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randint(256, (frames, SIDE, SIDE, 3), generator=generator, dtype=torch.uint8)


def normalised(bytes):
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((bytes.float() / 255 - mean) / deviation).permute(0, 3, 1, 2)


def npy(array):
    head = str({"descr": "|u1", "fortran_order": False, "shape": tuple(array.shape)}).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(array.flatten().tolist())


def write_shard(name, samples):
    with tarfile.open(folder / f"{name}.tar", "w") as tar:
        for key, frames, told in samples:
            members = {"json": json.dumps(told | {"frame_count": frames}).encode()}
            if frames:
                members["npy"] = npy(pixels(key, frames))
            for ending, content in members.items():
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def png(picture):
    """A picture [height, width, 3] of bytes as a file."""
    height, width, _ = picture.shape
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in picture)

    def chunk(kind, content):
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make_sets():
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    tool("make-tiny", "model", "gqa", folder / "reference", "--seed", "2")
    tool("make-tiny", "model", "mha", folder / "mha", "--seed", "1")
    questions = [(f"q{i}", frames, {"user": user, "choices": options, "answer": right} | ({"source": source} if source else {}))
                 for i, (user, options, right, frames, source) in enumerate(QUESTIONS)]
    write_shard("questions", questions)
    write_shard("losses", questions)
    write_shard("pairs", [(f"p{i}", frames, {"user": user, "chosen_assistant": chosen, "rejected_assistant": rejected})
                          for i, (user, chosen, rejected, frames) in enumerate(PAIRS)])
    (folder / "tiny.lua").write_text(RECIPE.replace("MODEL", "gqa"))


def run(*options, recipe="tiny.lua", model="gqa"):
    command = [engine, "eval", folder / recipe, "--model", folder / model, *options]
    return forked_program.run(command, cwd=folder)


def results(*options):
    done = run("--json", *options)
    assert done.returncode == 0, done.stderr
    return {(one["set"], one["mode"]): one for one in json.loads(done.stdout)["results"]}


def train_mlp():
    """A run `mlp` whose connector puts rows in their places in the text, and has no modes of fVLM's."""
    (folder / "mlp.lua").write_text("""local fvlm = require "fvlm"
return fvlm.recipe { name = "mlp", precision = "fp32",
  model = fvlm.model { vision = "gqa/vision", decoder = "gqa/decoder", image_size = 28, connector = fvlm.mlp {} },
  fvlm.stage "learn" { data = fvlm.mix { { "pairs.tar", fields = { assistant = "chosen_assistant" } }, max_frames = 4, max_text_tokens = 64 },
                       objective = fvlm.next_token { on = "answer" }, optimizer = fvlm.adamw { lr = 1e-3 }, samples = 3, batch = 3 } }
""")
    subprocess.run([engine, "train", "mlp.lua", "--run-dir", "mlp", "--device", "cpu"], cwd=folder, check=True, capture_output=True)
