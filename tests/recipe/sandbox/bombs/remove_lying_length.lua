-- expect: more than 5000000 instructions
table.remove(setmetatable({}, { __len = function() return math.maxinteger end }), 1) -- here
