-- expect: more than 5000000 instructions
table.insert(setmetatable({}, { __len = function() return math.maxinteger - 1 end }), 1, "x") -- here
