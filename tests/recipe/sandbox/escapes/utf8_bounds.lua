local s = "aä€😀"
for _, i in ipairs { math.mininteger, -100, -1, 0, 1, 5, 11, 12, math.maxinteger } do
  for _, j in ipairs { math.mininteger, -1, 0, 11, math.maxinteger } do
    pcall(utf8.len, s, i, j) pcall(utf8.codepoint, s, i, j) pcall(utf8.offset, s, i, j)
  end
end
for _, bad in ipairs { "\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80\x80", "\xe2\x82" } do
  assert(not utf8.len(bad), bad)
  pcall(function() for p, c in utf8.codes(bad) do end end)
end
assert(not pcall(utf8.char, -1) and not pcall(utf8.char, 2 ^ 31))
return "contained"
