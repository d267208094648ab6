-- expect: (more than 5000000 instructions|too many results)
local t = setmetatable({}, { __index = function() return 1 end })
while true do table.unpack(t, 1, 900000) end
