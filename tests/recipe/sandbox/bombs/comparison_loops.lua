-- expect: more than 5000000 instructions
local t = setmetatable({}, { __lt = function(a, b) return b < a end })
local function f() return t < t end
while true do pcall(f) end
