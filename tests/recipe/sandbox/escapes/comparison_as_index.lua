-- expect: a comparison inside
-- Lua up to 5.4.7 reads such an index from a register not yet written, which may hold a table of the engine
local up = {}
local function leak() return up[1 < 2] end -- here
pairs(require "fvlm")
return leak()
