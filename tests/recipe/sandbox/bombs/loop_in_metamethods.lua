-- expect: more than 5000000 instructions
local t = setmetatable({}, { __index = function(t, k) return t[k] or 1 end })
while true do pcall(function() return t.x end) end
