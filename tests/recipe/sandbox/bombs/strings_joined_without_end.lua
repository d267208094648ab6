-- expect: more than 5000000 instructions
return table.concat(setmetatable({}, { __index = function() return "" end }), "", 1, math.maxinteger)
