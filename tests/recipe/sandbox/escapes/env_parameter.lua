-- expect: _ENV is not allowed
local function f(_ENV) return x end -- here
return f { x = 1 }
