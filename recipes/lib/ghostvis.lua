-- What the stages of GhostVis share: parameter groups, optimizers and schedules, by the depth of the decoder. A text
-- decoder is trained from nothing (base, and optionally mid), then a connector to a frozen image encoder (align), then
-- both on conversations about images (sft).
local fvlm = require "fvlm"

local ghostvis = {}

-- The decoder's last n layers, its token embedding and its head are groups of their own, so that a stage can train these
-- and freeze the rest. "connector" is the projector, "resampler" what stands before it.
function ghostvis.groups(depth, n)
  local last = {}
  for layer = math.max(0, depth - n), depth - 1 do last[#last + 1] = "decoder.model.layers." .. layer .. ".*" end
  return {
    embedding = "decoder.model.embed_tokens.*",
    head = "decoder.lm_head.*",
    last_layers = last,
    resampler = "connector.vision_resampler.*",
  }
end

-- The groups that a stage freezes where it trains the connector alone, or the whole decoder alone.
ghostvis.decoder = { "decoder", "last_layers", "embedding", "head" }
ghostvis.vision = { "vision", "connector", "resampler" }

local connector = { betas = { 0.9, 0.95 }, eps = 1e-8 }

-- Muon for the matrices of the decoder's layers and AdamW for all else, with rates that shrink with the root of the
-- width. `scale` multiplies the decoder's rates; `connector_lr` is the connector's.
function ghostvis.muon(depth, settings)
  local scale = settings.scale or 1
  local others = scale * (64 * depth / 768) ^ -0.5
  local biases, connector_lr = 0.02 * others, settings.connector_lr or 3e-5
  return fvlm.muon {
    lr = 0.02 * scale,
    groups = { "decoder", "last_layers" },
    momentum_warmup = settings.momentum_warmup or nil,
    weight_decay = { connector = 0.01, resampler = 0.01, default = 0 },
    clip = settings.clip or 0,
    others = {
      lr = {
        embedding = 0.2 * others, head = 0.004 * others, decoder = biases, last_layers = biases,
        connector = connector_lr, resampler = connector_lr, vision = connector_lr,
      },
      betas = { 0.8, 0.95 },
      eps = 1e-10,
      groups = { connector = connector, resampler = connector, vision = connector },
    },
  }
end

-- AdamW for the connector alone: rates of the projector and of what stands before it.
function ghostvis.adamw(projector, resampler)
  return fvlm.adamw {
    lr = { connector = projector, default = resampler },
    betas = connector.betas,
    eps = connector.eps,
    weight_decay = 0.01,
    clip = 0,
  }
end

-- The base rate, and over the last fifth of the stage down to 0.
function ghostvis.last_fifth(progress) return math.min(1, (1 - progress) / 0.2) end

-- Muon's momentum in stages that train the whole decoder.
ghostvis.momentum_warmup = { from = 0.85, steps = 300 }

-- Parameters of the decoder, embedding and head among them.
function ghostvis.parameters(depth, vocabulary)
  local width = 64 * depth
  local heads = width // 128
  local kv = 128 * math.max(1, heads // 2)
  local mlp = (width * 27 // 10 + 63) // 64 * 64
  local layer = 2 * width * width + 2 * width * kv + 3 * width * mlp + width + 2 * kv
  return depth * layer + 2 * vocabulary * width
end

-- The four stages with the numbers of the public GhostVis. Folders below --arg data=DIR:
--   base/         documents, KEY.txt or KEY.json {"text"}: FineWeb-Edu
--   smoltalk/     conversations without images; mid reads mmlu/ and gsm8k/, too
--   coco/         images with a description: KEY.jpg and KEY.json {"caption"}
--   vqav2/        images with {"user", "answers"}; the most frequent answer is learnt
--   textvqa/      images with {"user", "assistant"}: the first answer
-- --arg vision=DIR is a folder of clip-vit-large-patch14-336, --arg tokenizer=DIR one with tokenizer.json and a chat
-- template. --arg heldout=DIR adds evaluations on DIR/documents and DIR/vqav2. --arg mid=TOKENS adds the stage mid, over
-- so many tokens of its three sources, in longer and longer rows.
function ghostvis.recipe(depth)
  local data, heldout = fvlm.arg("data", "data"), fvlm.arg("heldout", "")
  local mid = tonumber(fvlm.arg("mid", "0"))
  local row = 2048

  local function shards(name) return data .. "/" .. name .. "/*.tar" end

  local function chat(mix)
    mix.chat_template, mix.system = "default", ""
    mix.max_frames, mix.max_text_tokens = 1, row - 64
    mix.prompts = { default = "Describe this image in detail." }
    return fvlm.mix(mix)
  end

  local function stream(mix, length)
    mix.documents, mix.max_text_tokens = "joined", length
    mix.chat_template, mix.system = "default", ""
    return fvlm.mix(mix)
  end

  local function bits_per_byte()
    if heldout == "" then return nil end
    local documents = stream({ { text = heldout .. "/documents/*.tar" } }, row)
    return { every = 1000, fvlm.evaluation "documents" { data = documents, measure = "bits_per_byte" } }
  end

  local function text_stage(name, mix, length, tokens, clip)
    return fvlm.stage(name, {
      freeze = ghostvis.vision,
      data = stream(mix, length),
      objective = fvlm.next_token { on = "all" },
      optimizer = ghostvis.muon(depth, { momentum_warmup = ghostvis.momentum_warmup, clip = clip }),
      schedule = ghostvis.last_fifth,
      samples = math.floor(tokens / length),
      batch = 524288 // length,
      packing = { tokens = 32768 },
      evaluation = bits_per_byte() or nil,
    })
  end

  local tokens = 20 * ghostvis.parameters(depth, 65536)
  local stages = { text_stage("base", { { text = shards "base" } }, row, tokens, 1) }
  if mid > 0 then
    for _, part in ipairs { { 2048, 0.6 }, { 4096, 0.2 }, { 8192, 0.15 }, { 16384, 0.05 } } do
      local mix = {
        { text = shards "smoltalk", weight = 460 },
        { text = shards "mmlu", weight = 100 },
        { text = shards "gsm8k", weight = 8 },
      }
      stages[#stages + 1] = text_stage("mid-" .. part[1], mix, part[1], part[2] * mid, 0)
    end
  end

  stages[#stages + 1] = fvlm.stage "align" {
    freeze = { "vision", table.unpack(ghostvis.decoder) },
    data = chat { { shards "coco" } },
    objective = fvlm.next_token { on = "answer" },
    optimizer = ghostvis.adamw(5e-5, 3e-5),
    schedule = fvlm.constant {},
    samples = 100000,
    batch = 256,
    packing = { frames = 32, tokens = 8192 },
  }

  local answers = nil
  if heldout ~= "" then
    answers = { fvlm.evaluation "vqav2" { data = chat { { heldout .. "/vqav2/*.tar" } }, measure = "answer", show = 8 } }
  end
  stages[#stages + 1] = fvlm.stage "sft" {
    freeze = { "vision", "decoder" }, -- of the decoder its last 4 layers, its embedding and its head learn
    data = chat {
      { shards "vqav2", weight = 50 },
      { shards "textvqa", weight = 20 },
      { shards "coco", weight = 10 },
      { text = shards "smoltalk", weight = 20 },
    },
    objective = fvlm.next_token { on = "answer" },
    optimizer = ghostvis.muon(depth, { scale = 0.02, connector_lr = 3e-5 }),
    schedule = fvlm.linear { to_share = 0 },
    samples = 100000,
    batch = 32,
    packing = { frames = 32, tokens = 8192 },
    evaluation = answers or nil,
  }

  return fvlm.recipe {
    name = "ghostvis-d" .. depth,
    model = fvlm.model {
      image_size = 336,
      vision = fvlm.arg("vision", "weights/clip-vit-large-patch14-336"),
      decoder = fvlm.ghostvis {
        depth = depth,
        tokenizer = fvlm.arg("tokenizer", "weights/nanochat-tokenizer"),
        max_positions = mid > 0 and 16384 or row,
      },
      connector = fvlm.perceiver {},
      groups = ghostvis.groups(depth, 4),
    },
    table.unpack(stages),
  }
end

return ghostvis
