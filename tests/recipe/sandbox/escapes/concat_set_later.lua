local function deep(n) if n == 0 then return 0 end return 1 + deep(n - 1) end
local mt = {}
local t = setmetatable({}, mt)
mt.__concat = function() deep(10000) return "r" end
assert(not pcall(function() return "a" .. t .. "b" end))
return "contained"
