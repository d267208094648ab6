-- expect: the result needs more than 16.0 MiB
local s, t = ("x"):rep(1000000), {}
for i = 1, 1000 do t[i] = s end
return t
