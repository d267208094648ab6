local count, kinds = 0, {}
xpcall(function() error("x") end, function(...)
  count = select("#", ...)
  for i = 1, count do kinds[i] = type(select(i, ...)) end
end)
assert(count == 1 and kinds[1] == "string")
return "contained"
