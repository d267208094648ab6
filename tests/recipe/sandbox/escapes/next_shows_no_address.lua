-- expect: no order to be walked in
local t = { [print] = 1, [{}] = 2 }
return next(t) -- here
