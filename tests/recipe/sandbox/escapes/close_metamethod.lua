-- expect: a metatable may not carry __close
setmetatable({}, { __close = print }) -- here
