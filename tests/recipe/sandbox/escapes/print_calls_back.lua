-- tostring of an argument is the author's code
local calls = 0
print(setmetatable({}, { __tostring = function() calls = calls + 1 return "x" end }))
assert(calls == 1 and not pcall(print, setmetatable({}, { __tostring = function() return 1.5, {} end })) == false)
return "contained"
