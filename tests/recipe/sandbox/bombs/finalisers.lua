-- expect: may not carry __gc
local function again() setmetatable({}, { __gc = again }) end -- here
again()
