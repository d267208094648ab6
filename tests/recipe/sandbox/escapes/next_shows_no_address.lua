-- expect: no fixed order
local t = { [print] = 1, [{}] = 2 }
return next(t) -- here
