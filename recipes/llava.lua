-- LLaVA 1.5 7B: a new MLP is aligned between CLIP and a language model, and then learns with the language model to follow
-- instructions. The numbers are those of the published scripts (pretrain.sh and finetune.sh of v1_5).
--
--   fvlm-engine import --model weights/llava-1.5-7b-hf --out models/llava-1.5-7b
--   fvlm-engine train recipes/llava.lua --arg model=models/llava-1.5-7b --arg data=/data
--   fvlm-engine export runs/llava --huggingface --out weights/llava-trained
--
-- Encoder and decoder are those of a folder that import read, whose encoder knows which layer's patches LLaVA takes. Its
-- decoder has been trained already; as published, align starts from Vicuna: --arg decoder=weights/vicuna-7b-v1.5, with
-- LLaVA's chat_template.jinja in that folder. To train the published LLaVA further: --stage sft --from models/llava-1.5-7b.
--
-- Folders below --arg data=DIR, with {"conversations"} as LLaVA has them:
--   pretrain/   LLaVA-Pretrain: 558 k images with a caption
--   instruct/   llava_v1_5_mix665k: those of its conversations that have an image
--   text/       the others
-- --arg heldout=DIR adds evaluations on DIR/pretrain and DIR/vqav2 (images with {"user", "answers"}).
--
-- One thing differs from the scripts: in align, the chat template and a question stand around a caption. By plan --budget
-- align needs 25 GiB of a GPU's memory and sft 125 GiB, or 100 with --set gradients=bf16 --set stages.sft.optimizer.moments=bf16.
local fvlm = require "fvlm"

local model = fvlm.arg("model", "models/llava-1.5-7b") -- made by import
local decoder = fvlm.arg("decoder", model .. "/decoder")
local data, heldout = fvlm.arg("data", "data"), fvlm.arg("heldout", "")
local rows_per_image, positions = 576, 2048

local function mix(...)
  return fvlm.mix {
    chat_template = "default",
    system = "",
    max_frames = 1,
    max_text_tokens = positions - rows_per_image,
    ...,
  }
end

local function evaluation(name, measure)
  if heldout == "" then return nil end
  local set = fvlm.evaluation(name) { data = mix { heldout .. "/" .. name .. "/*.tar" }, measure = measure, samples = 1024, show = 8 }
  return { every = 1000, set }
end

local function stage(name, described)
  described.objective = fvlm.next_token { on = "answer" }
  described.optimizer = fvlm.adamw { lr = described.lr, weight_decay = 0 }
  described.lr = nil
  described.schedule = fvlm.cosine { to_share = 0, warmup = 0.03 }
  described.packing = { frames = 16, tokens = 16384 }
  described.activation_checkpointing = { decoder = "all" }
  return fvlm.stage(name, described)
end

return fvlm.recipe {
  name = "llava",
  seed = 42,
  precision = "bf16",
  model = fvlm.model {
    vision = model .. "/vision",
    decoder = decoder,
    connector = fvlm.mlp {},
    image_size = 336,
  },

  stage("align", {
    freeze = { "vision", "decoder" },
    data = mix { data .. "/pretrain/*.tar" },
    lr = 1e-3,
    samples = 558128,
    batch = 256,
    evaluation = evaluation("pretrain", "loss") or nil,
  }),
  stage("sft", {
    freeze = "vision",
    data = mix({ data .. "/instruct/*.tar", weight = 624610 }, { text = data .. "/text/*.tar", weight = 40688 }),
    lr = 2e-5,
    samples = 665298,
    batch = 128,
    evaluation = evaluation("vqav2", "answer") or nil,
  }),
}
