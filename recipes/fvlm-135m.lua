-- fVLM-135M: DINOv2-small encodes the frames, SmolLM2-135M makes the queries and the text.
--
--   fvlm-engine plan recipes/fvlm-135m.lua --arg weights=/models --arg data=/data
local fvlm = require "fvlm"
local three = require "fvlm.three_stages"

return fvlm.recipe {
  name = "fvlm-135m",
  seed = 42,
  precision = "bf16",
  model = three.model("dinov2-small", "SmolLM2-135M-Instruct"),

  three.align { lr = { connector = 1e-3, vision = 1e-5, decoder = 1e-5 }, to = 3e-5 },
  three.instruct { lr = 3e-5 },
  three.prefer { lr = 1e-6 },
}
