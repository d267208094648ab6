-- The three training stages of the fVLM family: alignment, instruction, preference. Each is a function of the settings that
-- differ between model sizes; all other settings are defined here.
--
--   --arg data=DIR      folder of the shards: DIR/openvid/*.tar, DIR/webvid/*.tar, DIR/smoltalk/*.tar, ...
--   --arg heldout=DIR   adds an evaluation on DIR/captions, DIR/answers and DIR/pairs
local fvlm = require "fvlm"

local data = fvlm.arg("data", "data")
local heldout = fvlm.arg("heldout", "")

local function shards(name)
  return data .. "/" .. name .. "/*.tar"
end

local function adamw(lr)
  return fvlm.adamw { lr = lr, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01, clip = 1 }
end

-- One pack holds most of the 32 samples of a step, and the longest sample (64 frames, two answers) fits easily.
local packing = { frames = 512, tokens = 8192, segments = 32 }

local text_share = 0.14

local function evaluation(name, measure, mix)
  if heldout == "" then return nil end
  mix[1] = heldout .. "/" .. name .. "/*.tar"
  return { every = 2000, fvlm.evaluation(name, { measure = measure, data = fvlm.mix(mix), samples = 1024, show = 8 }) }
end

local stages = {}

-- Alignment: captions and plain text, loss on all tokens. `lr` by group, `to` is the common final rate.
function stages.align(size)
  return fvlm.stage "align" {
    data = fvlm.mix {
      { shards "openvid", name = "openvid" },
      { shards "webvid", name = "webvid" },
      { text = shards "smoltalk", name = "smoltalk" },
      text_ratio = text_share,
      max_frames = 64,
      max_text_tokens = 512,
    },
    objective = fvlm.next_token { on = "all" },
    optimizer = adamw(size.lr),
    schedule = fvlm.converging { to = size.to, warmup = 0.03 },
    samples = 1e6,
    batch = 32,
    packing = packing,
    evaluation = evaluation("captions", "loss", { max_text_tokens = 512 }) or nil,
  }
end

-- Instruction: questions about images and videos, loss on the answers.
function stages.instruct(size)
  return fvlm.stage "instruct" {
    data = fvlm.mix {
      { shards "cauldron", weight = 0.47, name = "cauldron" },
      { shards "vript", shards "sharegpt4video", weight = 0.39 },
      { text = shards "smoltalk", name = "smoltalk" },
      text_ratio = text_share,
      max_frames = 64,
      max_text_tokens = 1024,
      replicate_image_frames = 8,
    },
    objective = fvlm.next_token { on = "answer" },
    optimizer = adamw(size.lr),
    schedule = fvlm.cosine { to_share = 0.1, warmup = 0.03 },
    samples = 1e6,
    batch = 32,
    packing = packing,
    evaluation = evaluation("answers", "loss", { max_text_tokens = 1024, replicate_image_frames = 8 }) or nil,
  }
end

-- Preference: pairs of answers to images, against the frozen model of the stage before.
function stages.prefer(size)
  return fvlm.stage "prefer" {
    data = fvlm.mix {
      { shards "rlaif-v", name = "rlaif-v" },
      max_frames = 64,
      max_text_tokens = 1024,
      replicate_image_frames = 8,
    },
    objective = fvlm.dpo { beta = 0.1 },
    optimizer = adamw(size.lr),
    schedule = fvlm.cosine { to_share = 0.1, warmup = 0.1 },
    samples = 83000,
    batch = 32,
    packing = packing,
    activation_checkpointing = size.activation_checkpointing or "none",
    evaluation = evaluation("pairs", "preference", { max_text_tokens = 1024, replicate_image_frames = 8 }) or nil,
  }
end

-- The towers as Hugging Face folders: --arg weights=DIR says where they lie.
function stages.model(vision, decoder)
  local weights = fvlm.arg("weights", "weights")
  return fvlm.model {
    vision = weights .. "/" .. vision,
    decoder = weights .. "/" .. decoder,
    connector = { query_dim = 384, visual_scale = 0.14 },
    image_size = 224,
  }
end

return stages
