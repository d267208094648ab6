local n = 0
for i = math.maxinteger - 1, math.maxinteger do n = n + 1 end
for i = math.mininteger + 1, math.mininteger, -1 do n = n + 1 end
for i = math.maxinteger, math.mininteger do n = n + 100 end
for i = 1, math.huge, math.maxinteger do n = n + 1 end
assert(select("#", ipairs({})({}, math.maxinteger)) == 1)
assert(n == 5 and not pcall(function() for i = 1, 10, 0 do end end))
return "contained"
