assert(tonumber(("9"):rep(400)) == math.huge or tonumber(("9"):rep(400)) == nil)
assert(tonumber(("f"):rep(100), 16) and not tonumber("1e+") and not tonumber("0x") and not pcall(tonumber, "1", 99))
assert(tonumber("nan") == nil and tonumber("inf") == nil)
return "contained"
