-- expect: the result needs more than 16.0 MiB
local t = { 1 }
for i = 1, 40 do t = { t, t } end
return t
