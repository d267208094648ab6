-- expect: a recipe has no _ENV
local function f(_ENV) return x end -- here
return f { x = 1 }
