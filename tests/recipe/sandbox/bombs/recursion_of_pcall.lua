-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory|C stack overflow)
local function f() return pcall(f), pcall(f) end
f()
local function g() local x = f() return g() end
g()
