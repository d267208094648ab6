-- expect: attempt to index a nil value
getmetatable("").__index = { rep = error } -- here
