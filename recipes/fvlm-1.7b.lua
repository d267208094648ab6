-- fVLM-1.7B: SmolLM2-1.7B with DINOv2-small, at a third of the learning rates of the 135M.
local fvlm = require "fvlm"
local three = require "fvlm.three_stages"

return fvlm.recipe {
  name = "fvlm-1.7b",
  seed = 42,
  precision = "bf16",
  model = three.model("dinov2-small", "SmolLM2-1.7B-Instruct"),

  three.align { lr = { connector = 3e-4, vision = 3e-6, decoder = 3e-6 }, to = 1e-5 },
  three.instruct { lr = 1e-5 },
  -- The DPO reference is a second model in memory.
  three.prefer { lr = 5e-7, activation_checkpointing = "all" },
}
