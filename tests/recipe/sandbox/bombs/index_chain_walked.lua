-- expect: longer than
-- seconds: 1
local previous = {}
for i = 1, 1900 do previous = setmetatable({}, { __index = previous }) end
for i = 1, 1e9 do local x = previous.x end -- here
