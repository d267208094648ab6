-- expect: (stack overflow|more than 16.0 MiB of memory)
local function f(a, b, c, d, e, g, h) local x = { a, b } return f(x, a, b, c, d, e, g) .. "" end -- here
return f()
