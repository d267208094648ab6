-- the tag cannot be found by walking or guessing
local made = require("fvlm").adamw { lr = 1 }
local count = 0
for key in pairs(made) do count = count + 1 end
assert(count == 1 and made.constructor == nil and made[1] == nil and rawget(made, "__metatable") == nil)
return "contained"
