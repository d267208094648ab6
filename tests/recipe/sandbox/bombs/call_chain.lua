-- expect: __call must be a function
local t = {}
local mt = {}
mt.__call = setmetatable({}, {})
local previous = function() return 1 end
for i = 1, 1000 do previous = setmetatable({}, { __call = previous }) end -- here
while true do previous() end
