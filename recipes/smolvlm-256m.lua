-- SmolVLM-256M-Instruct, trained further: first on questions about images, then on preferences. It starts from a folder
-- that import read from the published one, and export --huggingface writes the result in the same form.
--
--   fvlm-engine import --model weights/SmolVLM-256M-Instruct --out models/smolvlm-256m
--   fvlm-engine train recipes/smolvlm-256m.lua --arg model=models/smolvlm-256m --arg data=/data
--   fvlm-engine export runs/smolvlm-256m --huggingface --out weights/smolvlm-256m-trained
--
-- Folders below --arg data=DIR:
--   vqav2/      images with {"user", "answers"}; half of the training questions, of which the most frequent answer is learnt
--   rlaif-v/    images with {"user", "chosen_assistant", "rejected_assistant"}
-- --arg heldout=DIR adds evaluations on DIR/vqav2 and DIR/rlaif-v.
--
-- The paper publishes no learning rates. sft has the numbers of Hugging Face's notebook Smol_VLM_FT (1e-4, 16 samples a
-- step, 50 steps of warm-up, weight decay 0.01, one pass), but trains the encoder as well, at a tenth of the rate. dpo has
-- those of Hugging Face's recipe for SmolVLM and RLAIF-V (32 pairs a step) with TRL's defaults (1e-6, beta 0.1, linear).
local fvlm = require "fvlm"

local model = fvlm.arg("model", "models/smolvlm-256m") -- made by import
local data, heldout = fvlm.arg("data", "data"), fvlm.arg("heldout", "")
local tiles, rows_per_tile = 17, 64 -- of an image: at most 4 x 4 tiles and the whole

local function mix(folder, name)
  return fvlm.mix {
    { folder .. "/" .. name .. "/*.tar" },
    chat_template = "default",
    system = "",
    max_frames = tiles,
    max_text_tokens = 1024,
  }
end

local function evaluation(name, measure)
  if heldout == "" then return nil end
  return { every = 1000, fvlm.evaluation(name) { data = mix(heldout, name), measure = measure, samples = 1024, show = 8 } }
end

local images = 4 -- of a pack, at their largest
local packing = { frames = images * tiles, tokens = images * (tiles * rows_per_tile + 1024) }
local questions, batch = 221879, 16

return fvlm.recipe {
  name = "smolvlm-256m",
  seed = 42,
  precision = "bf16",
  model = fvlm.model {
    vision = model .. "/vision",
    decoder = model .. "/decoder",
    connector = fvlm.pixel_shuffle { factor = 4 },
    image_size = 512,
  },

  fvlm.stage "sft" {
    from = model,
    data = mix(data, "vqav2"),
    objective = fvlm.next_token { on = "answer" },
    optimizer = fvlm.adamw { lr = { vision = 1e-5, default = 1e-4 }, weight_decay = 0.01 },
    schedule = fvlm.linear { warmup = 50 / (questions / batch) },
    samples = questions,
    batch = batch,
    packing = packing,
    evaluation = evaluation("vqav2", "answer") or nil,
  },
  fvlm.stage "dpo" {
    data = mix(data, "rlaif-v"),
    objective = fvlm.dpo { beta = 0.1 },
    optimizer = fvlm.adamw { lr = 1e-6, weight_decay = 0 },
    schedule = fvlm.linear {},
    samples = 83000,
    batch = 32,
    packing = packing,
    evaluation = evaluation("rlaif-v", "preference") or nil,
  },
}
