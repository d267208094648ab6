-- expect: more than 5000000 instructions
local t = setmetatable({}, { __index = rawlen and function() return 1 end, __newindex = function() end })
table.move(t, 1, 1e15 // 1, 2, t)
