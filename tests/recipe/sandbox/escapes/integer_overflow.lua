assert(math.mininteger // -1 == math.mininteger and math.mininteger % -1 == 0 and -math.mininteger == math.mininteger)
assert(math.abs(math.mininteger) == math.mininteger and not pcall(function() return 1 // 0 end))
assert(1 << 64 == 0 and 1 << -1 == 0 and 1 >> math.mininteger == 0)
return "contained"
