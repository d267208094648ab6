-- expect: '__index' chain too long
local t = setmetatable({}, {})
local previous = {}
for i = 1, 3000 do previous = setmetatable({}, { __index = previous }) end
return previous.x -- here
