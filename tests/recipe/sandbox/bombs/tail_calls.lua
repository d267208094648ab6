-- expect: more than 5000000 instructions
local function f() return f() end -- here
f()
