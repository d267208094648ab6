-- expect: (stack overflow|more than 16.0 MiB)
local function f(n) return 1 + f(n + 1) end -- here
return f(1)
