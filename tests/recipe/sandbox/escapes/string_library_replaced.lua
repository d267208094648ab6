local real = string.rep
string = { rep = function() return "mine" end }
assert(("x"):rep(2) == "xx" and ("x").rep == real)
return "contained"
