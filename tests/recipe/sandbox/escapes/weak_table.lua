-- expect: a metatable may not carry __mode
setmetatable({}, { __mode = "k" }) -- here
