local s = "abc"
for _, i in ipairs { math.mininteger, -1e9 // 1, -4, 0, 4, math.maxinteger } do
  i = math.tointeger(i)
  for _, j in ipairs { math.mininteger, -4, 0, 4, math.maxinteger } do
    assert(#s:sub(i, j) <= 3 and select("#", s:byte(i, j)) <= 3)
    pcall(string.find, s, "b", i, true) pcall(string.match, s, ".", i) pcall(string.gmatch, s, ".", i)
    pcall(string.gsub, s, ".", "x", j)
  end
end
return "contained"
